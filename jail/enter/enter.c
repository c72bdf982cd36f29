#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { control_fd = 3 };

struct timespec stage_began;

struct role {
	char name[16], mode[16], skip[32];
	unsigned int uid, gid;
};

static void die(const char *act)
{
	dprintf(control_fd, "{\"error\":\"enter: %s: %s\"}", act, strerror(errno));
	_exit(125);
}

static bool skipped(const struct role *r, const char *step)
{
	return strcmp(r->skip, step) == 0;
}

static void write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		die(path);
	if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		die(path);
	close(fd);
}

static void map_one(const char *path, unsigned int inside, unsigned int outside)
{
	char line[64];
	snprintf(line, sizeof line, "%u %u 1\n", inside, outside);
	write_to(path, line);
}

static void enter_holder(const struct role *r)
{
	bool rootless = strcmp(r->mode, "rootless") == 0;
	if (unshare(CLONE_NEWNS | (rootless ? CLONE_NEWUSER : 0)) < 0)
		die("unshare");
	if (rootless) {
		/* An unprivileged gid map needs setgroups to be denied first: user_namespaces(7). */
		write_to("/proc/self/setgroups", "deny");
		map_one("/proc/self/uid_map", 0, r->uid);
		map_one("/proc/self/gid_map", 0, r->gid);
	}
	/* Not SIGKILL: the holder still has mounts to abort. New credentials clear the signal, so it comes last. */
	if (prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0) < 0)
		die("set parent death signal");
}

static void drop_capabilities(void)
{
	/* Ends at the first number the kernel does not know. */
	for (unsigned long c = 0; prctl(PR_CAPBSET_DROP, c, 0, 0, 0) == 0; c++)
		continue;
	if (errno != EINVAL)
		die("drop bounding set");
	if (prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
		  SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
		  SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED, 0, 0, 0) < 0)
		die("lock secure bits");
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
		die("clear ambient capabilities");
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { 0 };
	if (syscall(SYS_capset, &head, none) < 0)
		die("drop capabilities");
}

static void enter_shim(const struct role *r)
{
	if (strcmp(r->mode, "rootless") == 0 && !skipped(r, "ns.user")) {
		/* Mapping the parent's id 0 needs CAP_SETFCAP there since Linux 5.12; libcontainer leaves it to us. */
		if (unshare(CLONE_NEWUSER) < 0)
			die("unshare user namespace");
		map_one("/proc/self/uid_map", r->uid, 0);
		map_one("/proc/self/gid_map", r->gid, 0);
	}
	const struct rlimit no_core = { 0, 0 };
	if (!skipped(r, "core") && setrlimit(RLIMIT_CORE, &no_core) < 0)
		die("set core limit");
	if (!skipped(r, "caps.none"))
		drop_capabilities();
	if (!skipped(r, "nnp") && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		die("set no_new_privs");
	/* Last: /proc/self then belongs to root, and the maps above could not be written any more. */
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		die("clear dumpable");
}

__attribute__((constructor)) static void stage_enter(void)
{
	struct role r = { 0 };
	clock_gettime(CLOCK_MONOTONIC, &stage_began);
	const char *env = getenv("_STAGE_ENTER");
	if (env == NULL || getenv("_LIBCONTAINER_INITPIPE") != NULL)
		return;
	if (sscanf(env, "%15s %15s %u %u %31s", r.name, r.mode, &r.uid, &r.gid, r.skip) != 5)
		return;
	if (strcmp(r.name, "holder") == 0)
		enter_holder(&r);
	else if (strcmp(r.name, "shim") == 0)
		enter_shim(&r);
}
