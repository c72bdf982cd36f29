package jail

import (
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
)

// CleanUp removes what a jail left whose supervisor and holder were both killed: its cgroups. Its
// mounts and processes went with their namespaces. workDir is the Config.WorkDir it had. It must
// not be called while the jail lives.
func CleanUp(workDir string) error {
	if os.Geteuid() != 0 {
		return nil // an ordinary user's jail has no cgroup of its own
	}
	m, err := manager.New(&cgroups.Cgroup{Name: CgroupName(workDir), Resources: &cgroups.Resources{}})
	if err != nil {
		return fmt.Errorf("find cgroups of jail: %w", err)
	}
	if err := m.Destroy(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove cgroups of jail: %w", err)
	}
	return nil
}
