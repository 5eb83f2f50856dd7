package main

import (
	"context"
	"fmt"
	"net/url"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

// One request to an etcd on the same machine takes milliseconds; a busy machine gets seconds.
const requestTimeout = 10 * time.Second

// newEtcdCommand makes a single-member etcd on a Unix socket. It never syncs to disk: its data lives as long as the tests.
func newEtcdCommand() *cobra.Command {
	var directory, socket string
	command := &cobra.Command{
		Use:   "etcd",
		Short: "A single-member etcd for tests",
		RunE: func(command *cobra.Command, _ []string) error {
			return runEtcd(command.Context(), directory, socket)
		},
	}
	command.Flags().StringVar(&directory, "data-dir", "", "where the data lives")
	command.Flags().StringVar(&socket, "socket", "", "path of the Unix socket for clients; the one for peers has .peer added")
	return command
}

func runEtcd(ctx context.Context, directory, socket string) error {
	config := embed.NewConfig()
	config.Dir = directory
	config.UnsafeNoFsync = true
	config.LogLevel = "warn"
	config.ListenClientUrls = []url.URL{{Scheme: "unix", Path: socket}}
	config.ListenPeerUrls = []url.URL{{Scheme: "unix", Path: socket + ".peer"}}
	// What a member tells other members. There are none, but etcd insists on a host and a port.
	nobody := []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}}
	config.AdvertiseClientUrls, config.AdvertisePeerUrls = nobody, nobody
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	defer server.Close()
	select {
	case err := <-server.Err():
		return fmt.Errorf("etcd: %w", err)
	case <-ctx.Done():
		return nil
	}
}

// newCompactCommand forgets all history, so that who watches from an old revision is told that it expired.
func newCompactCommand() *cobra.Command {
	var socket string
	command := &cobra.Command{
		Use:   "etcd-compact",
		Short: "Forget all revisions but the newest",
		RunE: func(command *cobra.Command, _ []string) error {
			return compact(command.Context(), socket)
		},
	}
	command.Flags().StringVar(&socket, "socket", "", "path of the Unix socket of etcd")
	return command
}

func compact(ctx context.Context, socket string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + socket}, DialTimeout: requestTimeout})
	if err != nil {
		return fmt.Errorf("connecting to etcd: %w", err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	now, err := client.Get(ctx, "none")
	if err != nil {
		return fmt.Errorf("asking etcd for its revision: %w", err)
	}
	if _, err := client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		return fmt.Errorf("compacting etcd: %w", err)
	}
	return nil
}
