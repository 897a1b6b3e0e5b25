package dbtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// Kind is a server's make and version.
type Kind string

// The kinds.
const (
	MariaDB1011 Kind = "mariadb1011"
	MariaDB118  Kind = "mariadb"
	MySQL97     Kind = "mysql"
	MySQL56     Kind = "mysql56"
	// Galera is a MariaDB1011 that is a cluster of one node, with large transactions
	// replicated in fragments.
	Galera Kind = "galera"
)

// galeraLibrary is what makes a MariaDB a node of a cluster, where Debian has it.
const galeraLibrary = "/usr/lib/galera/libgalera_smm.so"

// Kinds are all of them.
func Kinds() []Kind { return []Kind{MariaDB1011, MariaDB118, MySQL97, MySQL56, Galera} }

// MariaDB says whether the kind is a MariaDB.
func (k Kind) MariaDB() bool { return k == MariaDB1011 || k == MariaDB118 || k == Galera }

// cacheDir is where fetched servers lie.
func cacheDir(t testing.TB) string {
	t.Helper()
	dir, err := harness.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// fetch brings the kind's program here and returns its directory; empty for the
// server of this system.
func (k Kind) fetch(t testing.TB) string {
	t.Helper()
	if k == MariaDB1011 || k == Galera {
		testenv.NeedPrograms(t, "mariadbd", "mariadb-install-db")
		if k == Galera {
			_, err := os.Stat(galeraLibrary)
			testenv.SkipUnless(t, err == nil, "galera-4 is not installed; scripts/install-deps.sh installs it")
		}
		return ""
	}
	dir, err := harness.FetchServer(context.Background(), string(k))
	if errors.Is(err, harness.ErrNotToBeHad) {
		testenv.Unavailable(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// lock takes a file lock and returns what releases it.
func lock(t testing.TB, path string) (unlock func()) {
	t.Helper()
	release, err := harness.LockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	}
}

// program is the server's command line up to its options.
func (k Kind) program(fetched string) []string {
	run := filepath.Join(fetched, "run")
	base := filepath.Join(fetched, "root", "usr")
	switch k {
	case MariaDB118:
		return []string{
			run, "usr/sbin/mariadbd", "--no-defaults", "--lc-messages-dir=" + filepath.Join(base, "share/mariadb"),
			"--character-sets-dir=" + filepath.Join(base, "share/mariadb/charsets"), "--plugin-dir=" + filepath.Join(base, "lib/mysql/plugin"),
		}
	case MySQL97:
		return append(harness.MySQLProgram(fetched), "--performance-schema=OFF")
	case MySQL56:
		// It comes without system tables: everybody may log in, with any password.
		return []string{run, "mysqld", "--performance-schema=OFF", "--skip-grant-tables"}
	}
	return []string{"mariadbd", "--no-defaults"}
}

// template returns a data directory with system tables, which is made once.
func (k Kind) template(t testing.TB, fetched string) string {
	t.Helper()
	if k == Galera {
		k = MariaDB1011 // the tables are the same
	}
	dir := filepath.Join(cacheDir(t), "data-"+string(k))
	defer lock(t, dir+".lock")()
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	tmp, err := os.MkdirTemp(cacheDir(t), "data-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp) // when it failed; else it has another name
	if err := k.install(fetched, tmp); err != nil {
		t.Fatalf("make system tables of %s: %v", k, err)
	}
	if err := os.RemoveAll(filepath.Join(tmp, "auto.cnf")); err != nil { // a UUID of its own for each server
		t.Fatal(err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (k Kind) install(fetched, data string) error {
	var c *exec.Cmd
	switch k {
	case MariaDB1011:
		c = exec.Command("mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", "--user=root")
	case MySQL97:
		argv := append(k.program(fetched), "--user=root", "--initialize-insecure", "--datadir="+data)
		c = exec.Command(argv[0], argv[1:]...)
	case MySQL56:
		c = exec.Command("cp", "-rT", filepath.Join(fetched, "package/server/data"), data)
	case MariaDB118:
		const text = `(printf '%s\n' 'create database if not exists mysql;' 'use mysql;' 'set @auth_root_socket=NULL;'; cat "$0"/mariadb_system_tables.sql "$0"/mariadb_performance_tables.sql "$0"/mariadb_system_tables_data.sql) | "${@}"`
		argv := append(k.program(fetched), "--user=root", "--bootstrap", "--datadir="+data, "--log-warnings=0")
		c = exec.Command("bash", append([]string{"-o", "pipefail", "-c", text, filepath.Join(fetched, "root/usr/share/mariadb")}, argv...)...)
		if err := os.Mkdir(filepath.Join(data, "mysql"), 0o755); err != nil {
			return err
		}
	}
	// A server that starts deletes the temporary tables in its TMPDIR, also those
	// of others.
	tmp, err := os.MkdirTemp("", "cst-")
	if err != nil {
		return err
	}
	c.Env = append(os.Environ(), "TMPDIR="+tmp)
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out)
	}
	return errors.Join(err, os.RemoveAll(tmp))
}
