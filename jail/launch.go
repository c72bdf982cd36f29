package jail

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"stage/jail/enter"
)

// Launched is a holder that waits to be told what to hold. It starts while the caller still decides that.
type Launched struct {
	mode     Mode
	uid, gid uint32
	holder   *child
	control  *packetConn // nil once a Jail has taken the holder over
}

// Launch starts a holder for a Config of the same Exe, Mode, UID and GID.
func Launch(exe string, mode Mode, uid, gid uint32) (*Launched, error) {
	control, end, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("start holder: %w", err)
	}
	defer end.Close()
	role := enter.Role{Name: enter.Holder, Rootless: mode == Rootless, UID: uid, GID: gid}
	cmd := &exec.Cmd{
		Path:        exe,
		Args:        []string{"stage-holder"},
		Env:         []string{role.Environ()},
		Dir:         "/",
		ExtraFiles:  []*os.File{end},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}, // ^C of the caller's terminal must not reach it
	}
	holder, err := startChild(cmd)
	if err != nil {
		control.c.Close()
		return nil, fmt.Errorf("start holder: %w", err)
	}
	return &Launched{mode: mode, uid: uid, gid: gid, holder: holder, control: control}, nil
}

// Close ends a holder that no Jail has taken over. It does nothing else, and may be called on nil.
func (l *Launched) Close() error {
	if l == nil || l.control == nil {
		return nil
	}
	err := l.control.c.Close() // its order to end
	l.control = nil
	<-l.holder.done
	return err
}

// takeOver makes the holder that of j.
func (l *Launched) takeOver(j *Jail) error {
	if l.control == nil || l.mode != j.cfg.Mode || l.uid != j.cfg.UID || l.gid != j.cfg.GID {
		return errors.New("prepare jail: the holder was launched for another jail")
	}
	j.holder, j.control, l.control = l.holder, l.control, nil
	return nil
}
