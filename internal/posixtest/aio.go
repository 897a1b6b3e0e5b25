package posixtest

import (
	"bytes"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// iocb is the kernel's struct of that name (linux/aio_abi.h).
type iocb struct {
	data     uint64
	key      uint32
	rwFlags  int32
	opcode   uint16
	priority int16
	fd       uint32
	buf      uint64
	length   uint64
	offset   int64
	reserved uint64
	flags    uint32
	eventFD  uint32
}

// ioEvent is the kernel's struct io_event.
type ioEvent struct {
	data, obj  uint64
	res, other int64
}

const iocbPwrite = 1

// aioContext opens a queue of at most n requests, which ends with the case.
func (e *env) aioContext(n int) uintptr {
	e.Helper()
	var queue uintptr
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, uintptr(n), uintptr(unsafe.Pointer(&queue)), 0); errno != 0 {
		e.Fatalf("io_setup: %v", errno)
	}
	e.Cleanup(func() { unix.Syscall(unix.SYS_IO_DESTROY, queue, 0, 0) })
	return queue
}

// aioWrite writes buf, mapped memory, to the start of fd as requests of piece
// bytes that are all under way at once, and waits for them.
func (e *env) aioWrite(queue uintptr, fd int, buf []byte, piece int) {
	e.Helper()
	var list []*iocb
	for off := 0; off < len(buf); off += piece {
		list = append(list, &iocb{
			opcode: iocbPwrite, fd: uint32(fd), offset: int64(off), length: uint64(piece),
			buf: uint64(uintptr(unsafe.Pointer(&buf[off]))),
		})
	}
	for sent := 0; sent < len(list); {
		n, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, queue, uintptr(len(list)-sent), uintptr(unsafe.Pointer(&list[sent])))
		if errno != 0 {
			e.Fatalf("io_submit: %v", errno)
		}
		sent += int(n)
	}
	events := make([]ioEvent, len(list))
	for done := 0; done < len(list); {
		n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, queue, 1, uintptr(len(events)), uintptr(unsafe.Pointer(&events[0])), 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			e.Fatalf("io_getevents: %v", errno)
		}
		for _, event := range events[:n] {
			e.equal("bytes of an asynchronous write", event.res, int64(piece))
		}
		done += int(n)
	}
	runtime.KeepAlive(list)
}

// asyncDirectCheck reads a file through the page cache while asynchronous
// direct writes change it: once they have ended, no old page may be left. An
// online backup beside InnoDB does that.
func asyncDirectCheck(e *env) {
	const size, piece, rounds = 256 << 10, 16 << 10, 200
	p := e.file("f", 0o644, string(make([]byte, size)))
	direct, buffered := e.open(p, unix.O_RDWR|unix.O_DIRECT), e.open(p, unix.O_RDONLY)
	buf, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	e.must(err)
	defer unix.Munmap(buf)
	queue := e.aioContext(size / piece)
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		page := make([]byte, size)
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if _, err := unix.Pread(buffered, page, 0); err != nil {
				stopped <- fmt.Errorf("buffered read: %w", err)
				return
			}
		}
	}()
	got := make([]byte, size)
	for round := byte(1); round <= rounds && !e.Failed(); round++ {
		copy(buf, bytes.Repeat([]byte{round}, size))
		e.aioWrite(queue, direct, buf, piece)
		n, err := unix.Pread(buffered, got, 0)
		e.must(err)
		e.equal("bytes read", n, size)
		for i := range got {
			if got[i] != round {
				e.Errorf("round %d: byte %d is still %d", round, i, got[i])
				break
			}
		}
	}
	close(stop)
	e.must(<-stopped)
}
