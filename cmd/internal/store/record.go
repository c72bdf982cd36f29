package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"stage/bundle"
	"stage/fs/hostfs"
	"stage/fs/tree"
)

// maxRecord bounds what is read as one record: a bigger file is not one of ours.
const maxRecord = 64 << 20

func readRecord[D bundle.Document](d hostfs.Dir, name string) (*D, error) {
	data, err := readFile(d, name, maxRecord)
	if err != nil {
		return nil, err
	}
	return bundle.Decode[D](data)
}

func readFile(d hostfs.Dir, name string, limit int64) ([]byte, error) {
	f, err := d.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("read %q: more than %d bytes", name, limit)
	}
	return data, nil
}

// when says when what was written must survive a power failure. Complete it is at once, and a kill
// of any process changes nothing about it.
type when bool

const (
	soon when = false // with the file system's next commit: a run that a power failure ends is lost anyway
	now  when = true  // before the call returns
)

func (w when) settle(d hostfs.Dir) error {
	if w == soon {
		return nil
	}
	return d.Sync()
}

// replaceFile puts data under name: a reader finds the old file or the new one, after a crash too.
func replaceFile(d hostfs.Dir, name string, data []byte, durable when) error {
	if err := writePartial(d, name, data); err != nil {
		return err
	}
	if err := d.Rename(name+partialSuffix, d, name, 0); err != nil {
		return err
	}
	return durable.settle(d)
}

// createFile is replaceFile for a file that must not be there yet.
func createFile(d hostfs.Dir, name string, data []byte, durable when) error {
	if err := writePartial(d, name, data); err != nil {
		return err
	}
	if err := d.Rename(name+partialSuffix, d, name, hostfs.NoReplace); err != nil {
		return errors.Join(err, d.Unlink(name+partialSuffix))
	}
	return durable.settle(d)
}

// writePartial writes and syncs data under the partial name, replacing what a crash left there. The
// Job's lock keeps two writers apart.
func writePartial(d hostfs.Dir, name string, data []byte) error {
	partial := name + partialSuffix
	if err := d.Unlink(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.Create(partial, fileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, d.Unlink(partial))
	}
	return nil
}

// UpdateRun changes run.json: f is given what it says now and changes that. What names the Job
// cannot change, and a Job that is over does not run again.
//
// Preconditions:
//   - this process holds the Job's lock.
func (j *Job) UpdateRun(f func(*bundle.Run)) error {
	if err := j.needLock(); err != nil {
		return err
	}
	if err := j.Reload(); err != nil {
		return err
	}
	next := j.run
	f(&next)
	if err := checkStep(&j.run, &next); err != nil {
		return fmt.Errorf("update job %s: %w", j.ID(), err)
	}
	data, err := bundle.Encode(&next)
	if err != nil {
		return err
	}
	durable := now
	if next.State == bundle.Running {
		durable = soon
	}
	if err := replaceFile(j.dir, runName, data, durable); err != nil {
		return fmt.Errorf("update job %s: %w", j.ID(), err)
	}
	j.run = next
	return nil
}

// steps are the states that may follow each state.
var steps = map[bundle.State][]bundle.State{
	bundle.Preparing:   {bundle.Running, bundle.Ended, bundle.Interrupted},
	bundle.Running:     {bundle.Ended, bundle.Interrupted},
	bundle.Ended:       {},
	bundle.Interrupted: {},
}

func checkStep(old, next *bundle.Run) error {
	if old.Job != next.Job || old.Workspace != next.Workspace || old.CreatedAt != next.CreatedAt {
		return errors.New("a job's id, workspace and creation do not change")
	}
	if old.Publication == bundle.Dropped && next.Publication != bundle.Dropped {
		return fmt.Errorf("dropped becomes %s: %w", next.Publication, ErrWrongState)
	}
	if old.State == next.State {
		return nil
	}
	for _, s := range steps[old.State] {
		if s == next.State {
			return nil
		}
	}
	return fmt.Errorf("%s becomes %s: %w", old.State, next.State, ErrWrongState)
}

// WritePlan sets the plan's digest and writes plan.json, once.
//
// Preconditions:
//   - this process holds the Job's lock.
func (j *Job) WritePlan(p *bundle.Plan) error {
	if err := j.needLock(); err != nil {
		return err
	}
	if p.Job != j.ID() {
		return fmt.Errorf("write plan of job %s: it names job %s", j.ID(), p.Job)
	}
	data, err := bundle.EncodePlan(p)
	if err != nil {
		return err
	}
	if err := createFile(j.dir, planName, data, soon); err != nil {
		return fmt.Errorf("write plan of job %s: %w", j.ID(), err)
	}
	return nil
}

// Seal writes bundle.json, once: a second seal is ErrWrongState. Then it makes the Job's records
// durable and says in run.json how the Job ended.
//
// Preconditions:
//   - this process holds the Job's lock.
//   - the change logs and uppers are durable already.
func (j *Job) Seal(b *bundle.Bundle) error {
	if err := j.needLock(); err != nil {
		return err
	}
	if b.Job != j.ID() {
		return fmt.Errorf("seal job %s: bundle names job %s", j.ID(), b.Job)
	}
	data, err := bundle.Encode(b)
	if err != nil {
		return err
	}
	err = createFile(j.dir, bundleName, data, soon) // run.json, next, settles the directory for both
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("it is sealed already: %w", ErrWrongState)
	}
	if err != nil {
		return fmt.Errorf("seal job %s: %w", j.ID(), err)
	}
	return j.endAs(b, tree.DigestBytes(data))
}

// endAs writes into run.json what the bundle says of the Job's end.
func (j *Job) endAs(b *bundle.Bundle, digest tree.Digest) error {
	err := j.UpdateRun(func(r *bundle.Run) {
		r.BundleDigest = digest
		r.EndedAt = b.Outcome.EndedAt
		r.State = bundle.Ended
		if b.SealedBy == bundle.SealedByRecovery {
			r.State = bundle.Interrupted
			return
		}
		if r.EndedAt == nil { // not_started has no end of the command; the Job ends with its seal
			at := b.SealedAt
			r.EndedAt = &at
		}
	})
	if err != nil {
		return err
	}
	return j.Done()
}
