// Command kubernetes is the Kubernetes control plane that Baton's tests run against: kube-apiserver, etcd,
// kube-controller-manager and kubectl in one binary, so that one build gives all. The first argument says which of them
// this process is. With the build tag `node` the binary is also what makes a cluster of it: kube-scheduler, kubelet and
// kube-proxy.
//
// It owns nothing of Baton, and nothing of Baton is in it: the servers are Kubernetes' and etcd's own code with their own
// flags. What it adds is that each of them ends when its standard input closes, and may remove a folder then: a test
// process that dies in any way, also by SIGKILL, leaves nothing behind.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

const (
	// Set by the harness for servers that shall end with it.
	endWithStdin = "BATON_END_WITH_STDIN"
	// The folder that is removed when standard input closes, for one of the servers. Not at any other end.
	removeAtEnd = "BATON_REMOVE_AT_END"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	// Each reads the arguments as if it were called by its own name.
	os.Args = os.Args[1:]
	var command *cobra.Command
	switch os.Args[0] {
	case "kube-apiserver":
		command = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		command = controllers.NewControllerManagerCommand()
	case "kubectl":
		// It words its errors itself.
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
		return
	case "etcd":
		command = newEtcdCommand()
	case "etcd-compact":
		command = newCompactCommand()
	default:
		if command = nodeCommand(os.Args[0]); command == nil {
			usage()
		}
	}
	if os.Getenv(endWithStdin) != "" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			if folder := os.Getenv(removeAtEnd); folder != "" {
				_ = os.RemoveAll(folder)
			}
			os.Exit(0)
		}()
	}
	os.Exit(cli.Run(command))
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: kubernetes kube-apiserver|etcd|etcd-compact|kube-controller-manager|kubectl"+nodeNames+" [arguments]")
	os.Exit(2)
}
