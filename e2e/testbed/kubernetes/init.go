//go:build node

package main

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// newInitCommand is the first process of a node's PID namespace: it waits for processes that nobody else waits for, such as
// containerd's shims, and ends when its standard input closes. The kernel then kills all that is left in the namespace.
func newInitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "node-init",
		Short: "First process of a node: reaps, and ends with its standard input",
		Run: func(*cobra.Command, []string) {
			go func() {
				_, _ = io.Copy(io.Discard, os.Stdin)
				os.Exit(0)
			}()
			children := make(chan os.Signal, 1)
			signal.Notify(children, syscall.SIGCHLD)
			for range children {
				// One signal may stand for several.
				for {
					var status syscall.WaitStatus
					if id, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil); id <= 0 || err != nil {
						break
					}
				}
			}
		},
	}
}
