// SPDX-License-Identifier: BSD-2-Clause

package containers

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"bascule/test/netlab"
)

// withContainerd is a shell script that runs another, $1, while containerd runs, in namespaces of
// mounts and processes, which end with it. ctr has built-in folders for plugins and networks, and
// the shim has its sockets in /run: these are the test's folder, $0, there.
const withContainerd = `
	mount --make-rprivate /
	mkdir $0/run
	mount --rbind /run $0/run
	mount -t tmpfs tmpfs /run
	for kept in bascule netns; do
		mkdir /run/$kept
		mount --rbind $0/run/$kept /run/$kept
	done
	mount -t tmpfs tmpfs /opt
	mkdir -p /opt/cni/bin
	ln -s $0/plugins/* /opt/cni/bin
	mount -t tmpfs tmpfs /etc
	mkdir -p /etc/cni
	ln -s $0/networks /etc/cni/net.d
	containerd --config /dev/null --root $0/root --state /run/containerd >$0/log 2>&1 &
	containerd=$!
	until ctr version >/dev/null 2>&1; do
		kill -0 $containerd
		sleep 0.1
	done
	# a container whose files are the machine's own; what follows its name runs in it
	container() {
		name=$1
		shift
		ctr run --rm --cni --cgroup /bsc-$$-$name --env PATH=/usr/bin:/usr/sbin \
			--mount type=bind,src=/usr,dst=/usr,options=rbind:ro --rootfs $0/files $name "$@"
	}
	eval "$1"
`

// containerd starts containers as it does for Kubernetes and nerdctl. It removes their ports when
// they end, also if they are killed.
func TestContainerd(t *testing.T) {
	t.Parallel()
	needs(t, "containerd", "ctr", "runc", "unshare", "busybox")
	h := newHost(t)
	h.Bascule("bridge", "add", "cni0") // /run/bascule exists from now on
	dir := t.TempDir()
	plugins, networks, files := filepath.Join(dir, "plugins"), filepath.Join(dir, "networks"), filepath.Join(dir, "files")
	for _, d := range []string{plugins, networks, filepath.Join(files, "usr")} {
		h.must(os.MkdirAll(d, 0o755))
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		h.must(os.Symlink("usr/"+name, filepath.Join(files, name)))
	}
	for name, file := range map[string]string{"bascule-cni": netlab.Program(), "host-local": reference + "/host-local"} {
		h.must(os.Symlink(file, filepath.Join(plugins, name)))
	}
	c := h.routed(conf{"isDefaultGateway": true, "sourceGuard": true})
	list, err := json.Marshal(conf{"cniVersion": "1.0.0", "name": "pods", "plugins": []conf{c}})
	h.must(err)
	h.must(os.WriteFile(filepath.Join(networks, "10-pods.conflist"), list, 0o644))
	out, err := exec.CommandContext(t.Context(), "nsenter", "--net="+path(h.Switch),
		"unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", withContainerd, dir, `
		bascule=/opt/cni/bin/bascule
		ln -s $(readlink -f /opt/cni/bin/bascule-cni) $bascule
		container one busybox ping -c 1 -w 60 10.77.0.1
		container two busybox sleep 600 &
		two=$!
		until $bascule port show cni0 | grep cni/pods/default-two/eth0; do
			kill -0 $two
			sleep 0.1
		done
		container three busybox ping -c 1 -w 60 10.77.0.3
		ping -n -c 1 -w 60 10.77.0.3
		until ctr task kill --signal KILL two; do # it may have a port and no process yet
			kill -0 $two
			sleep 0.1
		done
		! wait $two
		ctr container list --quiet
		kill $containerd
		wait $containerd || true`).CombinedOutput()
	log, _ := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, log)
	}
	if got := slices.Collect(keys(h.plugged("cni0"))); len(got) != 1 || got[0] != "cni-gateway/cni0" {
		t.Errorf("the switch has %v after all containers have ended\n%s\n%s", got, out, log)
	}
	if left, _ := filepath.Glob(filepath.Join(h.data, "pods", "*.*.*.*")); len(left) > 0 {
		t.Errorf("addresses are left: %v", left)
	}
}
