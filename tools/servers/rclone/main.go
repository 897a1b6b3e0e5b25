// Command rclone is rclone with what a test store needs of it: its root
// command, `serve s3`, and the backend of local directories. All of rclone takes
// several times as long to build. The flags are rclone's.
package main

import (
	_ "github.com/rclone/rclone/backend/local" // registers the backend
	"github.com/rclone/rclone/cmd"
	_ "github.com/rclone/rclone/cmd/serve/s3" // registers the command
)

func main() { cmd.Main() }
