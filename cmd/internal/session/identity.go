package session

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"stage/jail"
)

// ErrInsideJob: the process runs in a Job, which cannot run, apply or drop Jobs.
var ErrInsideJob = errors.New("this is a Job: it cannot run, review, apply or drop Jobs, its own included")

// RefuseInsideJob returns ErrInsideJob in a Job. That is for a clear message: the store is out of a
// Job's reach anyway.
func RefuseInsideJob() error {
	if _, err := os.Lstat(jail.MarkerDir); err == nil {
		return ErrInsideJob
	}
	return nil
}

// droppedEnv tells the program, after it gave up root, that it had it.
const droppedEnv = "_STAGE_DROPPED"

// ActAs gives up root for good when stage was started through sudo or with --as-user: it becomes
// that user, with the user's groups and home, and starts itself again. An ordinary user, and root
// itself, goes on as is.
func ActAs(name string) error {
	if os.Getuid() != 0 {
		if name != "" && os.Getenv(droppedEnv) == "" { // with it, this is the user already
			return invalidf("--as-user %s: only root can act as another user: start stage as that user", name)
		}
		return nil
	}
	u, err := userBehind(name)
	if err != nil || u == nil {
		return err
	}
	if err := become(u); err != nil {
		return fmt.Errorf("act as user %s: %w", u.Username, err)
	}
	return syscall.Exec("/proc/self/exe", os.Args, userEnv(u))
}

// userBehind returns the user root was asked to act as, nil for root itself.
func userBehind(name string) (*user.User, error) {
	id := os.Getenv("SUDO_UID")
	switch {
	case name == "" && (id == "" || id == "0"):
		return nil, nil
	case name == "":
		return user.LookupId(id)
	}
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	if err != nil {
		return nil, invalidf("--as-user %s: no such user", name)
	}
	if u.Uid == "0" {
		return nil, nil
	}
	return u, nil
}

// become changes the credentials of the whole process.
func become(u *user.User) error {
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return err
	}
	ids, err := u.GroupIds()
	if err != nil {
		return err
	}
	groups := make([]int, 0, len(ids))
	for _, id := range ids {
		g, err := strconv.Atoi(id)
		if err != nil {
			return err
		}
		groups = append(groups, g)
	}
	if err := syscall.Setgroups(groups); err != nil {
		return err
	}
	if err := syscall.Setresgid(gid, gid, gid); err != nil {
		return err
	}
	return syscall.Setresuid(uid, uid, uid)
}

// userEnv is the environment with what names root replaced by what names the user.
func userEnv(u *user.User) []string {
	env := []string{droppedEnv + "=1", "HOME=" + u.HomeDir, "USER=" + u.Username, "LOGNAME=" + u.Username}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case name == "HOME" || name == "USER" || name == "LOGNAME" || name == "MAIL" || name == droppedEnv:
		case strings.HasPrefix(name, "SUDO_") || strings.HasPrefix(name, "XDG_"):
		default:
			env = append(env, kv)
		}
	}
	return env
}
