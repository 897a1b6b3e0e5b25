#!/bin/bash
# A real Ceph RADOS Gateway on loopback, to try a volume on: one monitor, one
# manager, one OSD in memory, and the gateway. Nothing leaves this machine and
# nothing outlives DIR.
#
#   scripts/radosgw.sh up DIR      starts it and prints the settings; DIR is made, or emptied of an earlier run
#   scripts/radosgw.sh down DIR    ends it; DIR stays for its logs
#
# RGW_PORT (default 7480) is the S3 port, RGW_MON_PORT (default RGW_PORT + 9000)
# the monitor's. The OSD takes up to 4 GiB of memory.
set -euo pipefail

usage() {
	echo "usage: scripts/radosgw.sh up|down DIR" >&2
	exit 2
}
[[ $# -eq 2 ]] || usage
dir=$(realpath -m "$2")
port=${RGW_PORT:-7480}
mon=${RGW_MON_PORT:-$((port + 9000))}
key=cistern-test
secret=cistern-test-secret
conf=(-c "$dir/ceph.conf")

down() {
	local file pid
	for file in "$dir"/run/*.pid; do
		[[ -f $file ]] || continue
		pid=$(<"$file")
		# A process that took the number since is none of ours.
		if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "$dir/ceph.conf"; then
			kill "$pid" 2>/dev/null || true
		fi
		rm -f "$file"
	done
}

install_packages() {
	local program
	for program in ceph-mon ceph-mgr ceph-osd ceph radosgw radosgw-admin uuidgen curl; do
		command -v "$program" >/dev/null && continue
		DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
			radosgw ceph-mon ceph-mgr ceph-osd ceph-common uuid-runtime curl >&2
		return
	done
}

# wait_for runs a command until it succeeds, at most 60 times a second apart.
wait_for() {
	local what=$1 i
	shift
	for ((i = 0; i < 60; i++)); do
		if "$@" >/dev/null 2>&1; then return; fi
		sleep 1
	done
	echo "radosgw.sh: $what did not come up; its log is in $dir/run" >&2
	down
	exit 1
}

configure() {
	cat >"$dir/ceph.conf" <<CONF
[global]
fsid = $1
mon host = [v1:127.0.0.1:$mon]
mon initial members = a
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon max pg per osd = 1000
mon data avail crit = 1
mgr initial modules =
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 4294967296
ms bind msgr2 = false
public network = 127.0.0.0/8
run dir = $dir/run
log file = $dir/run/\$name.log
admin socket = $dir/run/\$name.asok
pid file = $dir/run/\$name.pid
keyring = $dir/keyring
mon data = $dir/mon
mgr data = $dir/mgr
osd data = $dir/osd
rgw data = $dir/rgw
[client.rgw.x]
rgw frontends = beast endpoint=127.0.0.1:$port
CONF
}

up() {
	if (exec 3<>"/dev/tcp/127.0.0.1/$mon") 2>/dev/null || (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
		echo "radosgw.sh: port $port or $mon is taken; set RGW_PORT" >&2
		exit 1
	fi
	install_packages
	rm -rf "$dir"/{mon,mgr,osd,rgw,run,keyring,monmap,ceph.conf}
	mkdir -p "$dir"/{mon,mgr,osd,rgw,run}
	local fsid osd
	fsid=$(uuidgen)
	osd=$(uuidgen)
	configure "$fsid"
	{
		ceph-authtool --create-keyring "$dir/keyring" --gen-key -n mon. --cap mon 'allow *'
		ceph-authtool "$dir/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
		monmaptool --create --addv a "[v1:127.0.0.1:$mon]" --fsid "$fsid" "$dir/monmap" --clobber
		ceph-mon "${conf[@]}" --mkfs -i a --monmap "$dir/monmap" --keyring "$dir/keyring"
		ceph-mon "${conf[@]}" -i a
	} >"$dir/run/setup.log" 2>&1
	wait_for "the monitor" timeout 10 ceph "${conf[@]}" -s
	{
		ceph-mgr "${conf[@]}" -i x
		ceph "${conf[@]}" osd new "$osd"
		ceph-osd "${conf[@]}" -i 0 --mkfs --osd-uuid "$osd"
		ceph-osd "${conf[@]}" -i 0
	} >>"$dir/run/setup.log" 2>&1
	wait_for "the OSD" bash -c "ceph -c '$dir/ceph.conf' osd stat | grep -q '1 up'"
	radosgw "${conf[@]}" -n client.rgw.x >>"$dir/run/setup.log" 2>&1
	wait_for "the gateway" curl -sf -o /dev/null "http://127.0.0.1:$port/"
	radosgw-admin "${conf[@]}" user create --uid=cistern --display-name=cistern \
		--access-key="$key" --secret="$secret" >>"$dir/run/setup.log" 2>&1
	curl -sf -o /dev/null -X PUT -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' --aws-sigv4 aws:amz:us-east-1:s3 \
		--user "$key:$secret" "http://127.0.0.1:$port/volumes"
	cat <<TEXT
Ceph RADOS Gateway $(radosgw --version | cut -d' ' -f3) at http://127.0.0.1:$port, with an empty bucket, s3://volumes. For cistern:
  export CISTERN_S3_ENDPOINT=http://127.0.0.1:$port AWS_ACCESS_KEY_ID=$key AWS_SECRET_ACCESS_KEY=$secret
End it with: scripts/radosgw.sh down $dir
TEXT
}

case $1 in
up) up ;;
down) down ;;
*) usage ;;
esac
