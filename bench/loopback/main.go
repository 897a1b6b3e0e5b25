package main

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// readAheadKB is how far the kernel reads ahead of a sequential reader; without
// it buffered reads arrive 128 KiB at a time.
const readAheadKB = 4096

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: loopback SOURCE MOUNTPOINT")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "loopback:", err)
		os.Exit(1)
	}
}

func run(source, mountPoint string) error {
	syscall.Umask(0) // modes come from the requests
	fs, err := newLoopback(source)
	if err != nil {
		return err
	}
	server, err := fuse.NewServer(fs, mountPoint, mountOptions())
	if err != nil {
		return fmt.Errorf("mount %s: %w", mountPoint, err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	served := make(chan struct{})
	go func() { server.Serve(); close(served) }()
	if err := server.WaitMount(); err != nil {
		return fmt.Errorf("mount %s: %w", mountPoint, err)
	}
	if err := setReadAhead(mountPoint); err != nil {
		return err
	}
	fmt.Println("ready")
	select {
	case <-served:
		return nil
	case <-signals:
		err := server.Unmount()
		if err == nil {
			<-served
		}
		return err
	}
}

func mountOptions() *fuse.MountOptions {
	return &fuse.MountOptions{
		FsName: "loopback", Name: "loopback",
		AllowOther:               true,
		Options:                  []string{"default_permissions", "suid", "dev"},
		DirectMount:              true,
		DisableReadDirPlus:       true,
		DisableSplice:            true,
		ExplicitDataCacheControl: true, // nobody else changes the files
		MaxWrite:                 1 << 20,
		MaxBackground:            128,
		ExtraCapabilities:        fuse.CAP_ASYNC_DIO | fuse.CAP_HANDLE_KILLPRIV_V2 | fuse.CAP_DIRECT_IO_ALLOW_MMAP,
	}
}

// setReadAhead raises the read-ahead of the mount's device, whose number it
// takes from the list of mounts: asking the mount itself could wait for ever.
func setReadAhead(mountPoint string) error {
	abs, err := filepath.Abs(mountPoint)
	if err != nil {
		return fmt.Errorf("find %s: %w", mountPoint, err)
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	device := ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && fields[4] == abs {
			device = fields[2]
		}
	}
	name := "/sys/class/bdi/" + device + "/read_ahead_kb"
	if err := os.WriteFile(name, fmt.Appendln(nil, readAheadKB), 0o644); err != nil {
		return fmt.Errorf("raise the read-ahead of %s: %w", mountPoint, err)
	}
	return nil
}
