//go:build !node

package main

import "github.com/spf13/cobra"

const nodeNames = ""

// nodeCommand knows none: this binary is built without the tag `node`.
func nodeCommand(string) *cobra.Command {
	return nil
}
