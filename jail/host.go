package jail

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path"
	"strings"
)

// hostFacts looks at the host before anything is changed, and lays out what the net.unix canary must not reach.
func (j *Jail) hostFacts() (hostFacts, error) {
	ns, err := namespaces()
	if err != nil {
		return hostFacts{}, err
	}
	facts := hostFacts{Namespaces: ns, Pid: os.Getpid(), Abstract: "stage-canary-" + rand.Text()}
	if id, err := identify(lookupEnv(j.cfg.Env, "HOME")); err == nil {
		facts.Home = id
	}
	if facts.Sockets, facts.Reachable, err = hostSockets(j.cfg.Mounts); err != nil {
		return hostFacts{}, err
	}
	// Connections to it are never accepted; a connect that succeeds is what the canary looks for.
	if j.abstract, err = net.Listen("unix", "@"+facts.Abstract); err != nil {
		return hostFacts{}, fmt.Errorf("open canary socket: %w", err)
	}
	return facts, nil
}

// hostSockets returns where the jail would show sockets on which host processes listen: those that must not be
// connected, and those in what is shared.
func hostSockets(mounts []Mount) (sealed, shared []bytesText, err error) {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, nil, fmt.Errorf("list unix sockets: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// Num RefCount Protocol Flags Type St Inode Path; the path may hold blanks.
		fields := strings.SplitN(strings.Join(strings.Fields(lines.Text()), " "), " ", 8)
		const listening = "00010000"
		if len(fields) < 8 || fields[3] != listening || !path.IsAbs(fields[7]) {
			continue
		}
		for _, m := range mounts {
			if m.Kind != Bind || !isBelow(fields[7], m.Source) {
				continue
			}
			dest := bytesText(path.Join(m.Dest, strings.TrimPrefix(fields[7], m.Source)))
			if m.ReadOnly && fields[7] != m.Source {
				sealed = append(sealed, dest)
			} else {
				shared = append(shared, dest)
			}
		}
		if len(sealed)+len(shared) > maxSockets {
			break // enough to prove the point
		}
	}
	return sealed, shared, nil
}

const maxSockets = 64
