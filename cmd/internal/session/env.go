package session

import (
	"maps"
	"slices"
	"strings"

	"stage/policy"
)

// buildEnv makes the command's environment: what the plan passes of the caller's, what the request
// sets, and what the jail itself needs.
func (a *Admission) buildEnv(caller []string) {
	env := map[string]string{}
	for _, kv := range caller {
		name, value, _ := strings.Cut(kv, "=")
		if ok, _ := a.Plan.Env(name); ok {
			env[name] = value
			a.EnvPassed = append(a.EnvPassed, name)
		} else {
			a.EnvDropped = append(a.EnvDropped, name)
		}
	}
	maps.Copy(env, a.Plan.SetEnv)
	env["HOME"] = a.Home
	if _, ok := env["TMPDIR"]; ok {
		env["TMPDIR"] = "/tmp" // the Job's own
	}
	if env["PATH"] == "" {
		env["PATH"] = "/usr/local/bin:/usr/bin:/bin"
	}
	for _, h := range a.Agents {
		if h.preset.Env != "" {
			env[h.preset.Env] = h.path
		}
	}
	if a.Plan.Net.Mode == policy.NetAllow {
		setProxy(env)
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		a.Env = append(a.Env, name+"="+env[name])
	}
	slices.Sort(a.EnvPassed)
	slices.Sort(a.EnvDropped)
}

// setProxy points the usual variables at the mediator, in both spellings programs look for.
// Loopback is the Job's own and is reached directly.
func setProxy(env map[string]string) {
	const url, direct = "http://" + proxyAddr, "127.0.0.1,localhost,::1"
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		env[name], env[strings.ToLower(name)] = url, url
	}
	env["NO_PROXY"], env["no_proxy"] = direct, direct
}
