package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/cisternfs/cistern/internal/faultproxy"
	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/storeserver"
)

// proxyCommand is the command `bench proxy`: the network before a store server,
// in a process of its own, so that its CPU time is nobody else's. It prints
//
//	ready <URL of the proxy> <URL of its counts>
//
// and ends with ctx.
func proxyCommand(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	server := flags.String("server", "", "URL of the store server")
	latency := flags.Duration("latency", 0, "added to each request")
	bandwidth := flags.Int64("bandwidth", 0, "bytes per second each way; 0: no limit")
	serialise := flags.Bool("serialise", false, "conditional PUTs to one key reach the server one after another")
	if err := flags.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	proxy, err := faultproxy.Start(*server, faultproxy.Options{
		Latency: *latency, Upload: *bandwidth, Download: *bandwidth, Serialise: *serialise,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, proxy.Close()) }()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for questions about the proxy: %w", err)
	}
	counts := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(proxy.Counts()) // who asked and went away needs no answer
	})}
	served := make(chan error, 1)
	go func() { served <- counts.Serve(listener) }()
	fmt.Printf("ready %s http://%s\n", proxy.URL(), listener.Addr())
	<-ctx.Done()
	err = counts.Close()
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}

// proxyProcess is a running `bench proxy`.
type proxyProcess struct {
	*harness.Process
	URL    string
	counts string // URL
}

// startProxy runs this program's proxy before a server.
func startProxy(ctx context.Context, c RemoteConfig, server *storeserver.Server) (*proxyProcess, error) {
	argv := []string{c.Program, "proxy", "--server", server.Endpoint, "--latency", c.Latency.String(), "--bandwidth", fmt.Sprint(c.Bandwidth)}
	if server.Kind == storeserver.Versitygw {
		argv = append(argv, "--serialise") // it judges a PUT's condition before it has the body
	}
	p, err := harness.Start(argv, "")
	if err != nil {
		return nil, err
	}
	if err := p.WaitLine(ctx, "ready"); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	words := strings.Fields(p.LogTail())
	if len(words) != 3 {
		return nil, errors.Join(fmt.Errorf("the proxy says %q instead of its two URLs", p.LogTail()), p.Kill())
	}
	return &proxyProcess{Process: p, URL: words[1], counts: words[2]}, nil
}

// Counts returns what has passed so far by HTTP method.
func (p *proxyProcess) Counts(ctx context.Context) (map[string]faultproxy.Count, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.counts, nil)
	if err != nil {
		return nil, err
	}
	reply, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the proxy for its counts: %w", err)
	}
	defer reply.Body.Close()
	var counts map[string]faultproxy.Count
	if err := json.NewDecoder(reply.Body).Decode(&counts); err != nil {
		return nil, fmt.Errorf("ask the proxy for its counts: %w", err)
	}
	return counts, nil
}
