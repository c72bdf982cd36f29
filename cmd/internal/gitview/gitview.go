// Package gitview says what git would say of a work tree and of changes below its .git, without
// running git: the trees it reads belong to a Job, and git would obey their configuration (hooks,
// fsmonitor, filters, external diff, pagers). Every file is read as data, with bounds.
package gitview
