//go:build node

package main

import (
	"context"

	"github.com/spf13/cobra"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// What usage adds for nodeCommand.
const nodeNames = "|kube-scheduler|kubelet|kube-proxy|node-init"

// nodeCommand is the command that runs Pods or their traffic, or nil if name is none of them. Tests of the control plane
// alone are built without it: these packages cost minutes of compiling and 40 MB.
func nodeCommand(name string) *cobra.Command {
	switch name {
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	case "kube-proxy":
		return proxy.NewProxyCommand()
	case "node-init":
		return newInitCommand()
	}
	return nil
}
