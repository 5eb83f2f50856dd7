#!/usr/bin/env bash
# Runs a command under another Linux kernel: in a virtual machine that boots a Debian kernel package and sees this machine's
# files, read-only below a layer in memory. Nothing of this machine is changed but target/vm.
#
#   tools/vm.sh KERNEL COMMAND...
#
# KERNEL is a file linux-image-*.deb (since Debian 14 with linux-binary-*.deb and linux-modules-*.deb of the same version beside
# it), or the name of such a package that apt-get here knows. The command runs in this folder, as root,
# with MEMORY (6G) and CPUS (2). Without hardware acceleration it is about ten times as slow; ACCEL=kvm where the machine has it.
# The exit status is the command's; 125 if the machine did not come so far.
set -euo pipefail

die() { printf 'vm: %s\n' "$*" >&2; exit 125; }
[ $# -ge 2 ] || die "usage: tools/vm.sh KERNEL COMMAND... (KERNEL: a linux-image-*.deb, or the name of a package)"
kernel=$1; shift
[ ! -f "$kernel" ] || kernel=$(realpath "$kernel")
cd "$(dirname "$0")/.."
home=$PWD
[ "$(uname -m)" = x86_64 ] || die "written for x86-64, this is $(uname -m)"
[ "$(id -u)" = 0 ] || die "run as root: the command shall see all files"

missing=()
for package in qemu-system-x86 busybox-static kmod cpio xz-utils; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "vm: installing ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

work=target/vm
mkdir -p $work
if [ ! -f "$kernel" ]; then
  # A package that stands for the newest kernel depends on the one that holds it.
  real=$(apt-cache depends "$kernel" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -1)
  real=${real:-$kernel}
  (cd $work && ls "$real"_*.deb >/dev/null 2>&1 || apt-get download -qq "$real" 2>/dev/null) ||
    die "there is no file and no package \`$kernel\`: \`apt-cache search linux-image\` names the packages"
  kernel=$(ls -t $work/"$real"_*.deb | head -1)
  # Since Debian 14 the kernel and its modules are packages of their own.
  for part in $(dpkg-deb -f "$kernel" Depends | grep -oE 'linux-(binary|modules)-[^ ]+'); do
    (cd $work && ls "$part"_*.deb >/dev/null 2>&1 || apt-get download -qq "$part") || die "there is no package \`$part\`"
  done
fi
root=$home/$work/$(basename "$kernel" .deb)
[ -d "$root" ] || {
  for part in image binary modules; do
    file=${kernel/linux-image-/linux-$part-}
    [ ! -f "$file" ] || dpkg -x "$file" "$root.part"
  done
  mv "$root.part" "$root"
}
# Since Debian 13 modules are below /usr.
modules=$(find "$root" -mindepth 2 -maxdepth 4 -type d -path '*/lib/modules/*' | head -1)
[ -n "$modules" ] || die "$kernel holds no kernel modules"
release=$(basename "$modules")
bzimage=$root/boot/vmlinuz-$release
[ -f "$bzimage" ] || bzimage=$modules/vmlinuz
[ -f "$bzimage" ] || die "$kernel holds no kernel, nor does linux-binary-*.deb beside it"
mkdir -p "$root/lib"
[ -e "$root/lib/modules" ] || ln -s ../usr/lib/modules "$root/lib/modules"
depmod -b "$root" "$release"

# What runs before the files can be seen: busybox and the modules for that, in the order in which they need each other.
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
start=$run/start
mkdir -p "$start"/{bin,modules,dev,proc,sys,files,memory,root} "$run/out"
cp "$(command -v busybox)" "$start/bin/busybox"
number=100
for file in $(for module in virtio_pci 9pnet_virtio 9p overlay; do
  modprobe -d "$root" -S "$release" --show-depends "$module" 2>/dev/null || true
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'); do
  number=$((number + 1))
  to=$start/modules/$number-$(basename "$file" .xz)
  case $file in *.xz) xz -dc "$file" > "$to" ;; *) cp "$file" "$to" ;; esac
done
cat > "$start/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*; do insmod \$module; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro files /files || poweroff -f
mount -t tmpfs -o size=80% memory /memory; mkdir /memory/changed /memory/work
mount -t overlay -o lowerdir=/files,upperdir=/memory/changed,workdir=/memory/work overlay /root || poweroff -f
cd /root
mount -t proc proc proc; mount -t sysfs sys sys; mount -t devtmpfs dev dev
mkdir -p dev/shm dev/pts mnt lib/modules
mount -t tmpfs shm dev/shm; mount -t devpts pts dev/pts
mount -t tmpfs run run; chmod 1777 dev/shm
mount -t cgroup2 cgroup sys/fs/cgroup; mount -t bpf bpf sys/fs/bpf
mount -t tmpfs modules lib/modules; mkdir lib/modules/$release
mount -o bind "/files$modules" lib/modules/$release
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 out mnt
ip link set lo up
umount /dev /sys /proc
# What enters a mount namespace gets that namespace's root: it must be this one.
exec switch_root /root /bin/bash /mnt/first
INIT
chmod 755 "$start/init"
(cd "$start" && find . | cpio -o -H newc 2>/dev/null | gzip -1) > "$run/start.gz"
cat > "$run/out/first" <<'FIRST'
bash /mnt/command > /dev/ttyS1 2>&1
echo $? > /mnt/status
sync; /bin/busybox poweroff -f
FIRST
{
  printf 'cd %q\n' "$home"
  printf 'export HOME=/root PATH=%q\n' "$PATH"
  printf '%q ' "$@"
} > "$run/out/command"

echo "vm: Linux $release (${ACCEL:-tcg})"
# The second serial line is the command's.
qemu-system-x86_64 -accel "${ACCEL:-tcg,thread=multi}" -cpu max -smp "${CPUS:-2}" -m "${MEMORY:-6G}" -display none -no-reboot \
  -monitor none -nic none -kernel "$bzimage" -initrd "$run/start.gz" -append "console=ttyS0 quiet panic=1" \
  -fsdev local,id=files,path=/,security_model=none,readonly=on,multidevs=remap \
  -device virtio-9p-pci,fsdev=files,mount_tag=files \
  -fsdev local,id=out,path="$run/out",security_model=none -device virtio-9p-pci,fsdev=out,mount_tag=out \
  -serial "file:$run/console" -serial stdio </dev/null || true
[ -f "$run/out/status" ] || { tail -20 "$run/console" >&2; die "Linux $release did not run the command"; }
exit "$(cat "$run/out/status")"
