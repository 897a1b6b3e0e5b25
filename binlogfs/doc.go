// Package binlogfs keeps a primary's binary log in a volume and serves it to
// replicas: `cistern binlog`. A source's events become byte-identical files,
// durable per group, and go out again over the replication protocol.
//
// # In the volume
//
//	<dir>/relay.json                  who the relay is: flavour, server id, UUID, the source's identity
//	<dir>/marks.json                  places from which on backups need the log (type KeepMark)
//	<dir>/<epoch>/                    one folder for each unbroken run of a source's files; 6 digits
//	<dir>/<epoch>/<name>.<number>     a binary log as the source wrote it, up to its published end
//	<dir>/<epoch>/binlog.index        the names, one a line, as the server's own index has them
//	<dir>/<epoch>/<name>.<number>.json  the catalogue of one file (type FileInfo)
//
// This is mirror mode. A failover to a source that goes on in other files begins
// the next epoch: replicas that ask by GTID go on, those that ask by file and
// position get an error. In own mode there is one epoch with a sequence of files
// of the relay's (type OwnFiles), which a failover does not end.
//
// # A file
//
//	magic FE 'bin' | format description | head events … | group | group | … | Rotate or Stop
//
// An event is
//
//	time 4B | type 1B | server id 4B | size 4B | log pos 4B | flags 2B | body | [CRC32 4B]
//
// little-endian, of size bytes in all; log pos is where it ends in its file,
// modulo 2^32 (MySQL Internals, "Binlog Event"). MariaDB from 11.4 on writes a
// log pos of 0 inside groups. A group is a transaction or one statement that
// commits by itself; head events are those outside of groups.
//
// # What it promises
//
// Bytes of an open group lie beyond the file's published end (gateway's Stage)
// and go to the bucket as they come; one record (Publish) makes a whole group
// visible. Published bytes never change and the published end never goes back,
// except by purging whole files from the front. A group is published only when
// its checksums, its positions and its end were right. A group of a source that
// went away is dropped. Nobody is told of a group before it is as durable as the
// relay was told to make it: not replicas, and not the source, which waits for
// the acknowledgement of semi-synchronous replication.
//
// # Towards replicas
//
// A Server speaks the protocol of its source's flavour. A dump is a stream of
// messages, each in packets of at most 16 MiB:
//
//	00 | [EF | 1: acknowledge, 0] | event
//
// artificial Rotate to the file | format description | events … | Rotate to the
// next file | … and a heartbeat where nothing comes for the time that the replica
// asked for. The bytes in brackets are there where the replica asked for
// semi-synchronous replication. By GTID whole groups that the replica has are
// passed over; by file and position it gets what lies behind them. Events are
// sent as they are stored; what is changed is the format description, which says
// neither that its file is in use nor, where a stream begins in its middle, that
// it lies there.
//
// # Concurrency
//
// One goroutine appends (type Appender), and one serves each client, with a second
// during a dump that reads acknowledgements. Any number read: they wait on the
// published end (Log.Wait). Log.mu guards the catalogue and the published end,
// and is never held over the volume or the network.
package binlogfs
