package main

import "github.com/spf13/cobra"

// binlogCommand is the parent of the commands of the binary log's relay and
// archive.
func (a *app) binlogCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "binlog", Short: "Relay and archive a server's binary log",
		Long: `Keeps the binary log of a MariaDB or MySQL server in a volume, byte for byte, and
serves it to replicas.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		a.binlogRelayCommand(), a.binlogStatusCommand(), a.binlogSourceCommand(), a.binlogFlushCommand(), a.binlogStopCommand(),
		a.binlogListCommand(), a.binlogShowCommand(), a.binlogEventsCommand(), a.binlogFindCommand(), a.binlogFetchCommand(), a.binlogVerifyCommand(),
		a.binlogPurgeCommand(), a.binlogMarkCommand(), a.binlogPendingCommand(), a.binlogAdoptCommand(), a.binlogReplayCommand(),
	)
	return c
}
