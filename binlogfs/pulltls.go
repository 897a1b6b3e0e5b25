package binlogfs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
)

// TLSMode is how far a source's certificate is trusted.
type TLSMode string

// The modes.
const (
	TLSOff            TLSMode = "off"
	TLSRequired       TLSMode = "required"        // encrypted, with any certificate
	TLSVerifyCA       TLSMode = "verify-ca"       // signed by the CA
	TLSVerifyIdentity TLSMode = "verify-identity" // and for the host's name
)

// TLSOptions are for connections to a source. The files are read at each
// connection, so that certificates can be renewed.
type TLSOptions struct {
	Mode TLSMode // default TLSOff
	CA   string  // file of PEM certificates; empty: the system's
	Cert string  // file of the relay's certificate, PEM
	Key  string  // file of its key, PEM
}

// Validate returns an error for options that contradict each other.
func (o *TLSOptions) Validate() error {
	switch o.Mode {
	case "", TLSOff:
		if o.CA != "" || o.Cert != "" || o.Key != "" {
			return errors.New("certificates are given, and TLS is off")
		}
	case TLSRequired, TLSVerifyCA, TLSVerifyIdentity:
	default:
		return fmt.Errorf("TLS mode %q: it must be off, required, verify-ca or verify-identity", o.Mode)
	}
	if (o.Cert == "") != (o.Key == "") {
		return errors.New("a certificate and its key belong together: give both")
	}
	return nil
}

// config makes the configuration for a connection to addr; nil for none.
func (o *TLSOptions) config(addr string) (*tls.Config, error) {
	if o.Mode == "" || o.Mode == TLSOff {
		return nil, nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = "localhost" // a socket
	}
	c := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		pem, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("the source's CA: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the source's CA: %s has no certificate", o.CA)
		}
	}
	if o.Cert != "" {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, fmt.Errorf("the relay's certificate %s: %w", o.Cert, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if o.Mode != TLSVerifyIdentity {
		c.InsecureSkipVerify = true // crypto/tls would look at the name, too
	}
	if o.Mode == TLSVerifyCA {
		roots := c.RootCAs
		c.VerifyConnection = func(s tls.ConnectionState) error { return verifyChain(s, roots) }
	}
	return c, nil
}

// verifyChain verifies who signed a certificate, whatever name it is for.
func verifyChain(s tls.ConnectionState, roots *x509.CertPool) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the source has no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
	return err
}
