package main

import (
	"context"
	"fmt"
	"strings"
)

// mountHelper is the name under which mount(8) calls this program:
//
//	mount.cistern <source> <dir> [-sfnv] [-N ns] [-o options] [-t type]
const mountHelper = "mount.cistern"

// ownOptions are the mount options that are flags of `cistern mount`; all others
// are the kernel's, or mount(8)'s own, which is done with them.
func ownOptions() []string {
	return []string{
		"config", "state", "durability", "commit-interval", "cache-size", "journal-size", "upload-limit", "download-limit", "limit-reached", "wait",
		"takeover", "accept-lost-journal", "on-lease-lost", "metrics-addr", "log-file", "read-only", "follow-interval", "dbroot", "encrypt-key-file",
	}
}

// helperArgs turns what mount(8) gives its helper into a command line. A source
// that is a path is a storagemanager.cnf whose DBRoots are to be mounted.
func helperArgs(args []string) (argv []string, fake bool, err error) {
	var words, kernel []string
	flags := []string{}
	options := func(list string) {
		for part := range strings.SplitSeq(list, ",") {
			name, value, given := strings.Cut(part, "=")
			name = strings.ReplaceAll(name, "_", "-")
			switch {
			case part == "" || mountsOwn(name):
			case isOwnOption(name) && given:
				flags = append(flags, "--"+name+"="+value)
			case isOwnOption(name):
				flags = append(flags, "--"+name)
			default:
				kernel = append(kernel, part)
			}
		}
	}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case !strings.HasPrefix(arg, "-") || arg == "-":
			words = append(words, arg)
		case arg == "-o" || arg == "-t" || arg == "-N":
			if i++; i == len(args) {
				return nil, false, usage(fmt.Errorf("%s lacks its value", arg))
			}
			if arg == "-o" {
				options(args[i])
			}
		default:
			if rest := strings.Trim(arg[1:], "sfnvw"); rest != "" {
				return nil, false, usage(fmt.Errorf("%s does not know %s", mountHelper, arg))
			}
			fake = fake || strings.Contains(arg, "f")
		}
	}
	if len(words) != 2 {
		return nil, false, usage(fmt.Errorf("usage: %s <url or storagemanager.cnf> <dir> [-o options]", mountHelper))
	}
	argv = append([]string{"mount"}, flags...)
	if len(kernel) > 0 {
		argv = append(argv, "-o", strings.Join(kernel, ","))
	}
	if strings.Contains(words[0], "://") {
		return append(argv, "--", words[0], words[1]), fake, nil
	}
	return append(argv, "--config="+words[0], "--", words[1]), fake, nil
}

func isOwnOption(name string) bool {
	for _, o := range ownOptions() {
		if o == name {
			return true
		}
	}
	return false
}

// mountsOwn says whether an option is for mount(8) and its kind alone.
func mountsOwn(name string) bool {
	switch name {
	case "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "-netdev", "nofail", "comment", "loop":
		return true
	}
	return strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "X-")
}

// runHelper runs as mount(8)'s helper. Its exit status is mount(8)'s: 0 done, 1
// wrong usage, 32 the mount failed.
func (a *app) runHelper(ctx context.Context, args []string) int {
	argv, fake, err := helperArgs(args)
	if err != nil {
		fmt.Fprintf(a.stderr, "%s: %s\n", mountHelper, sentence(err))
		return 1
	}
	if fake {
		return exitDone
	}
	a.argv = argv
	if a.run(ctx, argv) != exitDone {
		return 32
	}
	return exitDone
}
