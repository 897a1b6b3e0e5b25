package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cisternfs/cistern/internal/control"
	"github.com/cisternfs/cistern/objstore"
)

// mountRequest is a request that a mount of this machine has under way.
type mountRequest struct {
	objstore.Request
	client *control.Client
	id     string // <process>-<number>
}

// requestsUnderWay asks every mount of this machine that shows one of the DBRoots.
func (a *app) requestsUnderWay(ctx context.Context) ([]mountRequest, error) {
	sm, err := a.readStorageManager()
	if err != nil {
		return nil, err
	}
	one, err := sm.volumeURL("x")
	if err != nil {
		return nil, err
	}
	base := strings.TrimSuffix(one.String(), "x")
	var all []mountRequest
	for r := range a.allRecords() {
		if !strings.HasPrefix(r.URL, base) {
			continue
		}
		u, err := objstore.ParseURL(r.URL)
		if err != nil {
			continue
		}
		c, p, err := pingSocket(ctx, string(r.Socket), u)
		if err != nil {
			return nil, err
		}
		if c == nil {
			continue // it ended
		}
		var found []objstore.Request
		if err := c.Call(ctx, http.MethodGet, "/v1/requests", nil, nil, &found); err != nil {
			return nil, err
		}
		for _, f := range found {
			all = append(all, mountRequest{f, c, fmt.Sprintf("%d-%d", p.PID, f.ID)})
		}
	}
	return all, nil
}

func (a *app) smps(ctx context.Context, args []string) error {
	options := ""
	for _, arg := range args {
		letters, ok := strings.CutPrefix(arg, "-")
		if !ok || letters == "" || strings.Trim(letters, "nrt") != "" {
			return fmt.Errorf("unknown option %q: -n, -t and -r are known", arg)
		}
		options += letters
	}
	list, err := a.requestsUnderWay(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, o := range options {
		switch o {
		case 'n':
			slices.SortStableFunc(list, func(a, b mountRequest) int { return cmp.Compare(a.ID, b.ID) })
		case 't':
			slices.SortStableFunc(list, func(a, b mountRequest) int { return b.Since.Compare(a.Since) })
		}
	}
	if strings.Contains(options, "r") {
		slices.Reverse(list)
	}
	if err := a.say("%-24s%-12s  %-7s%s", "Id", "Time", "Op", "Key"); err != nil {
		return err
	}
	for _, r := range list {
		if err := a.say("%-24s%12.6f  %-7s%s", r.id, now.Sub(r.Since).Seconds(), r.Op, text(r.Key).shown()); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) smkill(ctx context.Context, args []string) error {
	list, err := a.requestsUnderWay(ctx)
	if err != nil {
		return err
	}
	found := args[0] == "all"
	for _, r := range list {
		if args[0] != "all" && args[0] != r.id {
			continue
		}
		var ended bool
		if err := r.client.Call(ctx, http.MethodPost, "/v1/requests/end", url.Values{"id": {strconv.FormatUint(r.ID, 10)}}, nil, &ended); err != nil {
			return err
		}
		found = found || ended
	}
	if !found {
		return fmt.Errorf("no request %s is under way: smps lists them", args[0])
	}
	return nil
}
