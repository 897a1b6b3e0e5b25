#!/bin/bash
# A database on a bucket, lost and found again: MariaDB on a mounted volume in an
# embedded file:// store, TPC-H's query 1, everything killed and the local state
# deleted, a new mount from the bucket alone, the same query, the same answer.
#
# ROWS  rows of lineitem (default 120000, at least 100000)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rows=${ROWS:-120000}
work=$(mktemp -d "${TMPDIR:-/tmp}/cistern-demo-XXXXXX")
bucket=$work/bucket mnt=$work/mnt state=$work/state
url=file://$bucket
sock=$work/run/db.sock
cistern=bin/cistern
mount_pid='' db_pid=''

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
fail() {
	echo "demo: $1" >&2
	shift
	for log in "$@"; do
		echo "--- $log" >&2
		tail -n 30 "$log" >&2 || true
	done
	exit 1
}

# Ends what still runs and removes what was made, whatever has happened.
cleanup() {
	local status=$?
	trap - EXIT INT TERM
	kill_hard "$db_pid"
	kill_hard "$mount_pid"
	detach
	rm -rf "$work"
	exit "$status"
}
kill_hard() {
	if [[ -n $1 ]]; then
		kill -KILL "$1" 2>/dev/null || true
		wait "$1" 2>/dev/null || true
	fi
}
detach() {
	if grep -q " $mnt fuse" /proc/self/mounts; then
		umount -l "$mnt" 2>/dev/null || fusermount3 -uz "$mnt"
	fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# wait_for SECONDS PID COMMAND… until the command succeeds; fails when the
# process ends first or the time is over.
wait_for() {
	local tries=$(($1 * 20)) pid=$2
	shift 2
	until "$@" >/dev/null 2>&1; do
		kill -0 "$pid" 2>/dev/null || return 1
		((tries-- > 0)) || return 1
		sleep 0.05
	done
}

mount_volume() { # flags…
	: >"$work/mount.log" # what the first mount said is not this one's
	"$cistern" mount "$url" "$mnt" --state "$state" --foreground "$@" >>"$work/mount.log" 2>&1 &
	mount_pid=$!
	wait_for 60 "$mount_pid" grep -qw ready "$work/mount.log" || fail "the volume does not mount" "$work/mount.log"
}

server_options=()
if [[ $(id -u) -eq 0 ]]; then
	server_options=(--user=root)
fi
start_mariadb() {
	mariadbd --no-defaults --datadir="$mnt/mysql" --socket="$sock" --pid-file="$work/run/db.pid" \
		--log-error="$work/run/error.log" --tmpdir="$work/run" --skip-networking --skip-name-resolve \
		--innodb-buffer-pool-size=128M --sync-binlog=1 --log-bin=binlog --server-id=1 --local-infile=1 \
		"${server_options[@]}" >"$work/run/out.log" 2>&1 &
	db_pid=$!
	wait_for 60 "$db_pid" query -e 'SELECT 1' || fail "MariaDB does not start" "$work/run/error.log" "$work/run/out.log" "$work/mount.log"
}
query() { mariadb --no-defaults --user=root --socket="$sock" --local-infile=1 "$@"; }

show_bucket() {
	(cd "$bucket" && find . -type f -printf '%s %P\n') | awk '
		{ split($2, part, "/"); kind = part[1]; n[kind]++; bytes[kind] += $1 }
		END { for (k in n) printf "  %-14s %5d  %9.2f MiB\n", k, n[k], bytes[k] / 1048576 }' | sort
	echo "  for example:"
	(cd "$bucket" && find . -type f -printf '%P\n' | sort | awk -F/ 'seen[$1]++ < 2 { print "    " $0 }' | cut -c1-150)
}

say "Packages and programs"
PATH=$PATH:/usr/sbin:/sbin
scripts/install-deps.sh
if [[ $rows -lt 100000 ]]; then fail "ROWS must be at least 100000"; fi
make -s --no-print-directory build
go build -o "$work/bench" ./bench
mkdir -p "$bucket" "$mnt" "$work/run"

say "A volume in $url, mounted"
"$cistern" format "$url"
mount_volume
grep " $mnt " /proc/self/mounts

say "MariaDB on it, and $rows rows of TPC-H's lineitem"
TMPDIR="$work/run" mariadb-install-db --no-defaults --datadir="$mnt/mysql" --auth-root-authentication-method=normal \
	--skip-test-db --skip-name-resolve "${server_options[@]}" >"$work/install.log" 2>&1 ||
	fail "the data directory can't be made" "$work/install.log" "$work/mount.log"
start_mariadb
"$work/bench" lineitem --rows "$rows" >"$work/lineitem.tbl"
query -e 'CREATE DATABASE tpch'
"$work/bench" lineitem --sql create | query tpch
query tpch -e "LOAD DATA LOCAL INFILE '$work/lineitem.tbl' INTO TABLE lineitem"
loaded=$(query tpch -N -e 'SELECT COUNT(*) FROM lineitem')
[[ $loaded -eq $rows ]] || fail "$loaded rows were loaded instead of $rows"

say "TPC-H query 1"
"$work/bench" lineitem --sql query1 >"$work/query1.sql"
query -t tpch <"$work/query1.sql" | tee "$work/before.txt"

say "Everything into the bucket: cistern sync"
"$cistern" sync "$mnt"
show_bucket
"$cistern" du "$mnt"

say "SIGKILL to the mount and to MariaDB; the local state deleted"
kill -KILL "$mount_pid" "$db_pid"
wait "$mount_pid" "$db_pid" 2>/dev/null || true
mount_pid='' db_pid=''
detach
rm -rf "$state"
ls -A "$mnt" | wc -l | sed 's/^/  files left at the mount point: /'

say "Mounted again from the bucket alone"
# Another state directory than the one that holds the lease: --takeover instead
# of waiting for the lease to run out.
mount_volume --takeover
start_mariadb
query -t tpch <"$work/query1.sql" | tee "$work/after.txt"

say "The two answers"
if ! diff "$work/before.txt" "$work/after.txt"; then
	fail "they differ"
fi
echo "  equal"

query -e SHUTDOWN
wait "$db_pid" || fail "MariaDB did not shut down in good order" "$work/run/error.log"
db_pid=''
"$cistern" umount "$mnt"
wait "$mount_pid" || fail "the mount did not end in good order" "$work/mount.log"
mount_pid=''
