// Package gitview says what git would say of a work tree and of changes below its .git, without
// running git: the trees it reads belong to a Job, and git would obey their configuration.
package gitview
