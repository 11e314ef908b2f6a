// SPDX-License-Identifier: BSD-2-Clause

package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"bascule/client"
)

// agent answers at a unix socket like an agent with a bridge and one port. A real agent does so at
// the path of --web.
func agent() (address string, end func()) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(dir, "web.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		log.Fatal(err)
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.String() {
		case "/api/v1/port/show?bridge=br0&stats=true":
			fmt.Fprint(w, `[{"ifname":"veth0","state":"forwarding","drops":{"mtu":3}}]`)
		case "/api/v1/monitor":
			fmt.Fprint(w, ":\n\ndata: {\"event\":\"learned\",\"mac\":\"02:00:00:00:00:01\"}\n\nevent: error\ndata: {\"detail\":\"the agent ends\"}\n\n")
		case "/api/v1/port/set":
			w.Header().Add("Bascule-Note", "a note")
			fmt.Fprint(w, "{}")
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"detail":"there is no bridge br9"}`)
		}
	}))
	return "unix:" + path, func() { l.Close(); os.RemoveAll(dir) }
}

func Example() {
	address, end := agent()
	defer end()
	c, err := client.New(address, "")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()

	ports, err := c.PortShow(ctx, client.PortShowParams{Bridge: "br0", Stats: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range ports {
		fmt.Println(p.Name, p.State, p.Drops)
	}
	notes, err := c.PortSet(ctx, client.PortSetParams{},
		client.SetPort{Bridge: "br0", Port: "veth0", Settings: map[string]string{"isolated": "on"}})
	fmt.Println(notes, err)

	_, err = c.PortShow(ctx, client.PortShowParams{Bridge: "br9"})
	var refused *client.Error
	fmt.Println(errors.As(err, &refused), refused.Status, err)

	for e, err := range c.Monitor(ctx, client.MonitorParams{}) {
		fmt.Println(e.Event, e.MAC, err)
	}
	// Output:
	// veth0 forwarding map[mtu:3]
	// [a note] <nil>
	// true 404 there is no bridge br9
	// learned 02:00:00:00:00:01 <nil>
	//   the agent ends
}
