#!/bin/bash
# Installs by apt-get what the tests, the demo and the benchmarks use and this
# machine lacks. Quiet and immediate when nothing is missing. Servers that come
# with packages are not started.
set -euo pipefail

# program:package
needs=(
	fusermount3:fuse3
	mariadbd:mariadb-server
	mariadb-install-db:mariadb-server
	mariadb-check:mariadb-client
	mariadb:mariadb-client
	mariadb-backup:mariadb-backup
	mydumper:mydumper
	rsync:rsync
	fio:fio
	sysbench:sysbench
	setfattr:attr
	getfacl:acl
	fuser:psmisc
)
# With the argument "tests": what fetches servers of other releases, and verifies
# units. Nothing of systemd is started.
if [[ ${1-} == tests ]]; then
	needs+=(npm:npm systemd-analyze:systemd)
fi

# Root's sbin folders may be missing from the PATH of an ordinary user.
PATH=$PATH:/usr/sbin:/sbin

# file:package
files=(
	/usr/lib/galera/libgalera_smm.so:galera-4
)

packages=()
for need in "${files[@]}"; do
	[[ -e ${need%%:*} ]] || packages+=("${need#*:}")
done
for need in "${needs[@]}"; do
	if ! command -v "${need%%:*}" >/dev/null; then
		package=${need#*:}
		[[ " ${packages[*]-} " == *" $package "* ]] || packages+=("$package")
	fi
done
if [[ ${#packages[@]} -eq 0 ]]; then
	exit 0
fi

if ! command -v apt-get >/dev/null; then
	echo "install-deps: missing ${packages[*]}, and there is no apt-get; install them by hand" >&2
	exit 1
fi
as_root=()
if [[ $(id -u) -ne 0 ]]; then
	if ! command -v sudo >/dev/null; then
		echo "install-deps: missing ${packages[*]}; run this as root, or install sudo" >&2
		exit 1
	fi
	as_root=(sudo)
fi

# A policy-rc.d that answers 101 keeps a package from starting its server. One
# that is there already stays; ours goes again, also after an error.
policy=/usr/sbin/policy-rc.d
log=$(mktemp)
ours=
finish() {
	if [[ -n $ours ]]; then
		"${as_root[@]}" rm -f "$policy"
	fi
	rm -f "$log"
}
trap finish EXIT
if [[ ! -e $policy ]]; then
	ours=yes
	printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
	"${as_root[@]}" chmod 755 "$policy"
fi

install() {
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -q --no-install-recommends "${packages[@]}" >"$log" 2>&1
}
echo "install-deps: installing ${packages[*]}"
# The list of packages may be missing or old: fetch it when the first try fails.
if ! install; then
	if ! "${as_root[@]}" apt-get update -q >"$log" 2>&1 || ! install; then
		cat "$log" >&2
		echo "install-deps: apt-get could not install ${packages[*]}" >&2
		exit 1
	fi
fi
