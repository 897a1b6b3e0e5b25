package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
)

// ErrNoServer: nothing listens at the socket.
var ErrNoServer = errors.New("no process answers at the control socket")

// Client asks the server at one socket.
type Client struct {
	path string
	http *http.Client
}

// NewClient returns a client of the socket at path. Nothing is connected yet.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		short, dir, err := shorten(path)
		if err != nil {
			return nil, fmt.Errorf("%w %s: %w", ErrNoServer, path, err)
		}
		defer dir.Close() // only named the socket
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", short)
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w %s: %w", ErrNoServer, path, err)
		}
		return c, err
	}
	return &Client{path: path, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true}}}
}

// do sends a request and returns a reply that is no error.
func (c *Client) do(ctx context.Context, method, endpoint string, query url.Values, body io.Reader) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "cistern", Path: endpoint, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", c.path, err)
	}
	reply, err := c.http.Do(r)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, fmt.Errorf("ask the mount: %w", err)
	}
	if reply.StatusCode == http.StatusOK {
		return reply, nil
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, maxRequest))
	if err != nil {
		return nil, fmt.Errorf("the mount's answer broke off: %w", err)
	}
	return nil, decodeError(text, reply.Status)
}

func decodeError(text []byte, status string) error {
	e := &Error{}
	if err := json.Unmarshal(text, e); err != nil || e.Message == "" {
		return fmt.Errorf("the mount answers %s: %s", status, bytes.TrimSpace(text))
	}
	return e
}

// Call asks for one document and reads it into out, a pointer. The error is an
// *Error when the server's function returned one, and wraps ErrNoServer when
// nobody is there.
func (c *Client) Call(ctx context.Context, method, endpoint string, query url.Values, body io.Reader, out any) error {
	reply, err := c.do(ctx, method, endpoint, query, body)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if err := json.NewDecoder(reply.Body).Decode(out); err != nil {
		return fmt.Errorf("the mount's answer broke off: %w", err)
	}
	return nil
}

// Stream asks for a stream and calls each with its items, in order.
func (c *Client) Stream(ctx context.Context, method, endpoint string, query url.Values, each func(item json.RawMessage) error) error {
	reply, err := c.do(ctx, method, endpoint, query, nil)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	dec := json.NewDecoder(reply.Body)
	for {
		var l struct {
			Item   json.RawMessage `json:"item"`
			End    bool            `json:"end"`
			Error  string          `json:"error"`
			Status int             `json:"status"`
		}
		err := dec.Decode(&l)
		switch {
		case err != nil:
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("the mount's answer broke off: %w", err)
		case l.Error != "":
			return &Error{Message: l.Error, Status: l.Status}
		case l.End:
			return nil
		}
		if err := each(l.Item); err != nil {
			return err
		}
	}
}

// Body asks for bytes and writes them to w.
func (c *Client) Body(ctx context.Context, endpoint string, query url.Values, w io.Writer) error {
	reply, err := c.do(ctx, http.MethodGet, endpoint, query, nil)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if _, err := io.Copy(w, reply.Body); err != nil {
		return fmt.Errorf("copy what the mount sends: %w", err)
	}
	switch end := reply.Trailer.Get(endTrailer); end {
	case "ok":
		return nil
	case "":
		return fmt.Errorf("the mount's answer broke off: %w", io.ErrUnexpectedEOF)
	default:
		return decodeError([]byte(end), reply.Status)
	}
}
