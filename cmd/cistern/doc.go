// Command cistern makes, mounts and looks after volumes: database directories
// on object storage. It turns flags and files into calls of packages gateway
// and fuse, and their answers into text, JSON and exit statuses.
//
//	main.go      exit statuses            app.go       what every command shares
//	root.go      the list of commands     store.go     the table of providers, the only place that names them
//	target.go    <vol>: URL or mount      state.go     state directories, the registry of mounts
//	service.go   a volume as commands see it: over a mount's control socket
//	             (remote.go), over a volume that is open here (live.go), or
//	             over the bucket alone (reading.go)
//	serve.go     the process of a mount   api.go       its control socket
//	fixed.go     what it serves when it mounts a point: one commit, pinned
//
// # How a command reaches a volume
//
// When a mount of this machine owns the volume, through that mount's control
// socket, and never through the mount point. Otherwise a command that only
// reads takes what the bucket has; one that writes becomes the owner for its
// duration, if the lease is released or --takeover is given, with a state
// directory of its own that goes when everything is committed.
//
// # On the local disk
//
//	/run/cistern/<hash of the mount point>.json   {pid, url, mount_point, state_dir, socket, started}
//	/var/lib/cistern/<hash of the URL>/           state directory, unless --state names another
//	    control.sock, mount.log                   beside what package gateway keeps there
//	/var/lib/cistern/point-<hash>/                of a mount of a point, one a point and mount point
//	    fixed/                                    its cache and index, which go with the mount
//	/var/lib/cistern/command-<random>/            of a writing command, while it runs, see commandstate.go
//
// The url of a mount of a point ends with @ and the commit's number.
//
// Ordinary users have $XDG_RUNTIME_DIR/cistern and ~/.local/state/cistern.
//
// # Exit status
//
//	0 done  1 failed  2 wrong usage or configuration  3 owned by another writer, or fenced
//	4 damage found  5 the store can't be reached, or changes are only in the local journal
//
// # Concurrency
//
// A command is one goroutine beside those of the packages that it uses. A mount
// also has the control socket's and the metrics' servers; serve.go owns and
// ends all of them.
package main
