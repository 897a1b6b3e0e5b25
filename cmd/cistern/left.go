package main

import (
	"errors"
	"fmt"

	"github.com/cisternfs/cistern/gateway"
)

// whereLeft adds to what closing a volume ended with where on this machine lies what
// the bucket may not have. again is the command that goes on with the state
// directory.
func whereLeft(err error, state, again string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, gateway.ErrFenced):
		return err // it names `cistern salvage` with the state directory
	case errors.Is(err, gateway.ErrUncommitted):
		return fmt.Errorf("%w; they are kept in the state directory %s: `%s` goes on from there, and brings them to the bucket when the store can be reached", err, state, again)
	}
	return fmt.Errorf("%w; the state directory is %s", err, state)
}

// again is the command that goes on with this process's state directory: with the
// keys that it needs, and the durability that was asked for.
func (m *mountProcess) again() string {
	what := "mount " + m.o.t.url.String() + " " + m.o.dir
	if m.o.relay != nil {
		what = "binlog relay " + m.o.t.url.String() + " …"
	}
	what = "cistern " + what + " --state " + m.o.state
	if m.a.configFlag != "" {
		what += " --config " + m.a.configFlag
	}
	for _, k := range m.a.keyFiles {
		what += " --encrypt-key-file " + k
	}
	if d, ok := m.o.onLine["durability"]; ok {
		what += " --durability " + d
	}
	return what
}
