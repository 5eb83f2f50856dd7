#!/bin/sh
# First part of a node's life, as first process of its PID namespace: gives its mount namespace what a machine of its own
# would have, then becomes node-init. Nothing here reaches the machine: the namespace's mounts are private.
# Arguments: the node's folder, its name, the Kubernetes binary.
set -eu
folder=$1 name=$2 kubernetes=$3

echo "$name" > /proc/sys/kernel/hostname

# /sys of this network namespace, with the machine's cgroup hierarchies carried over.
mkdir "$folder/cgroups"
mount --rbind /sys/fs/cgroup "$folder/cgroups"
umount -l /sys
mount -t sysfs sysfs /sys
mount --rbind "$folder/cgroups" /sys/fs/cgroup
umount -l "$folder/cgroups"
mount -t bpf bpf /sys/fs/bpf

# Paths that kubelet, containerd and plugins do not let anybody choose: /run/netns, /run/containerd, /var/lib/kubelet,
# /var/lib/cni, /var/log/containers.
mkdir "$folder/var" "$folder/var-work"
mount -t overlay -o "lowerdir=/var,upperdir=$folder/var,workdir=$folder/var-work" overlay /var
mount -t tmpfs tmpfs /run

# kubelet sets these for the whole machine unless they have the values that it wants: it shall find them so.
mkdir "$folder/sysctls"
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file=$folder/sysctls/$(echo "${setting%=*}" | tr / .)
  echo "${setting#*=}" > "$file"
  mount --bind "$file" "/proc/sys/${setting%=*}"
done

# Volumes that a container shares both ways need shared mounts. Last: the unmounts above would have reached others.
mount --make-rshared /
touch "$folder/mounted"
exec "$kubernetes" node-init
