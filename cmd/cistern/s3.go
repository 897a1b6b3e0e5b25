package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/s3"
)

// sectionS3 is the section of settings for s3:// volumes.
const sectionS3 = "S3"

// s3Settings are the settings for s3:// volumes while they are read.
type s3Settings struct {
	o            s3.Options
	prefix       string // that the section is for; empty: any
	bucket       string
	host         string // with a scheme or without
	stsHost      string
	port         int
	http         bool
	roleIsEC2    bool
	role         string // by name or ARN
	alternateARN string
}

// s3Keys are the keys of the section and what each value sets. Those of
// ColumnStore's storagemanager.cnf mean what they mean there.
func s3Keys() map[string]func(*s3Settings, string) error {
	text := func(field func(*s3Settings) *string) func(*s3Settings, string) error {
		return func(s *s3Settings, v string) error { *field(s) = v; return nil }
	}
	return map[string]func(*s3Settings, string) error{
		"bucket":                text(func(s *s3Settings) *string { return &s.bucket }),
		"prefix":                text(func(s *s3Settings) *string { return &s.prefix }),
		"region":                text(func(s *s3Settings) *string { return &s.o.Region }),
		"endpoint":              text(func(s *s3Settings) *string { return &s.host }),
		"port_number":           (*s3Settings).setPort,
		"use_http":              func(s *s3Settings, v string) error { return setSwitch(&s.http, v) },
		"ssl_verify":            (*s3Settings).setVerify,
		"path_style":            (*s3Settings).setPathStyle,
		"ca_file":               text(func(s *s3Settings) *string { return &s.o.CAFile }),
		"aws_access_key_id":     text(func(s *s3Settings) *string { return &s.o.AccessKeyID }),
		"aws_secret_access_key": text(func(s *s3Settings) *string { return &s.o.SecretAccessKey }),
		"aws_session_token":     text(func(s *s3Settings) *string { return &s.o.SessionToken }),
		"profile":               text(func(s *s3Settings) *string { return &s.o.Profile }),
		"ec2_iam_mode":          func(s *s3Settings, v string) error { return setSwitch(&s.roleIsEC2, v) },
		"iam_role_name":         text(func(s *s3Settings) *string { return &s.role }),
		"role_arn":              text(func(s *s3Settings) *string { return &s.alternateARN }),
		"external_id":           text(func(s *s3Settings) *string { return &s.o.ExternalID }),
		"sts_region":            text(func(s *s3Settings) *string { return &s.o.STSRegion }),
		"sts_endpoint":          text(func(s *s3Settings) *string { return &s.stsHost }),
		"sse":                   text(func(s *s3Settings) *string { return &s.o.SSE }),
		"sse_kms_key_id":        text(func(s *s3Settings) *string { return &s.o.KMSKeyID }),
		"storage_class":         text(func(s *s3Settings) *string { return &s.o.StorageClass }),
		"tags":                  (*s3Settings).setTags,
		// What follows steers Storage Manager's own requests: Cistern's deadlines
		// follow from a request's size.
		"connect_timeout": func(_ *s3Settings, v string) error { _, err := inRange(v, 0, 86400); return err },
		"timeout":         func(_ *s3Settings, v string) error { _, err := inRange(v, 0, 86400); return err },
		"libs3_debug":     func(_ *s3Settings, v string) error { var debug bool; return setSwitch(&debug, v) },
	}
}

// openS3 opens the bucket of an s3:// URL.
func (a *app) openS3(ctx context.Context, u objstore.URL) (objstore.Store, error) {
	return a.openS3Bucket(ctx, u, false)
}

// openS3Bucket opens the bucket for what is below a prefix, or for all in it.
func (a *app) openS3Bucket(ctx context.Context, u objstore.URL, whole bool) (objstore.Store, error) {
	o, err := a.s3Options(u, whole)
	if err != nil {
		return nil, usage(err)
	}
	s, err := s3.Open(ctx, o)
	if err != nil {
		return nil, usage(err)
	}
	return s, nil
}

// s3Options reads the settings for a volume, or for a whole bucket.
func (a *app) s3Options(u objstore.URL, whole bool) (s3.Options, error) {
	s, err := a.readS3Section()
	if err != nil {
		return s3.Options{}, err
	}
	if err := s.belongTo(u, whole); err != nil {
		return s3.Options{}, err
	}
	s.o.Bucket = u.Bucket
	if err := s.complete(); err != nil {
		return s3.Options{}, err
	}
	return s.o, s.o.Validate()
}

// readS3Section reads the section's values, each by itself. The error joins all
// that is wrong.
func (a *app) readS3Section() (*s3Settings, error) {
	keys := s3Keys()
	names := slices.Sorted(maps.Keys(keys))
	set, err := a.sectionSettings(sectionS3, names)
	var wrong problems
	wrong.add(err)
	s := &s3Settings{}
	for _, key := range names {
		value := set[key]
		if value == "" {
			continue
		}
		if err := keys[key](s, value); err != nil {
			if len(value) > longestShown {
				value = "…" // it may stand in the wrong line and be a secret
			}
			wrong.add(a.settingError(sectionS3, key, value, err))
		}
	}
	return s, wrong.err()
}

// longestShown is how many bytes of a value of the section are shown where it is
// wrong: no secret is as short.
const longestShown = 12

// belongTo refuses to use the keys of one bucket for another, and those of a prefix
// outside it unless the whole bucket is meant.
func (s *s3Settings) belongTo(u objstore.URL, whole bool) error {
	if s.bucket != "" && s.bucket != u.Bucket {
		return fmt.Errorf("the S3 settings are for bucket %s, and %s is in another: use a configuration file for that", s.bucket, u)
	}
	if p := strings.Trim(s.prefix, "/"); p != "" && !whole && p != u.Path && !strings.HasPrefix(u.Path, p+"/") {
		return fmt.Errorf("the S3 settings are for the prefix %s, and %s is outside it: use a configuration file for that", p, u)
	}
	return nil
}

// complete puts together what several keys say.
func (s *s3Settings) complete() (err error) {
	if s.host == "" && (s.port != 0 || s.http) {
		return errors.New("S3 settings port_number and use_http go with endpoint")
	}
	if s.o.Endpoint, err = s.url(s.host, s.port); err != nil {
		return err
	}
	if s.o.STSEndpoint, err = s.url(s.stsHost, 0); err != nil {
		return err
	}
	s.o.EC2Role = s.roleIsEC2
	switch {
	case s.roleIsEC2 && s.alternateARN == "":
		// iam_role_name names the instance's own role, of which there is one.
	case s.role != "" && s.alternateARN != "":
		return errors.New("S3 settings iam_role_name and role_arn exclude each other")
	case strings.HasPrefix(s.role, "arn:"):
		s.o.RoleARN = s.role
	default:
		s.o.RoleName, s.o.RoleARN = s.role, s.alternateARN
	}
	return nil
}

// url makes a URL of a host with or without scheme and port.
func (s *s3Settings) url(host string, port int) (string, error) {
	if host == "" {
		return "", nil
	}
	scheme, rest, ok := strings.Cut(host, "://")
	if !ok {
		scheme, rest = "https", host
		if s.http {
			scheme = "http"
		}
	} else if s.http && scheme == "https" {
		return "", errors.New("S3 setting use_http is enabled, and the endpoint begins with https")
	}
	rest = strings.TrimSuffix(rest, "/")
	if port != 0 {
		if _, _, err := net.SplitHostPort(rest); err == nil {
			return "", errors.New("S3 setting port_number: the endpoint has a port already")
		}
		rest = net.JoinHostPort(strings.Trim(rest, "[]"), strconv.Itoa(port))
	}
	return scheme + "://" + rest, nil
}

func (s *s3Settings) setPort(v string) error {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil {
		return errors.New("it is not a port: give 1 to 65535, or 0 for the usual one")
	}
	s.port = int(n)
	return nil
}

func (s *s3Settings) setVerify(v string) error {
	var verify bool
	err := setSwitch(&verify, v)
	s.o.InsecureTLS = !verify
	return err
}

func (s *s3Settings) setPathStyle(v string) error {
	var path bool
	if strings.EqualFold(v, "auto") {
		return nil
	}
	err := setSwitch(&path, v)
	s.o.Addressing = s3.AddressingVirtual
	if path {
		s.o.Addressing = s3.AddressingPath
	}
	return err
}

// setTags reads "key=value, key=value".
func (s *s3Settings) setTags(v string) error {
	s.o.Tags = map[string]string{}
	for part := range strings.SplitSeq(v, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if _, twice := s.o.Tags[key]; !ok || key == "" || twice {
			return errors.New("it is not a list of different tags, like team=db, stage=test")
		}
		s.o.Tags[key] = value
	}
	return nil
}

// setSwitch reads a switch as storagemanager.cnf has it, or as others do.
func setSwitch(b *bool, v string) error {
	switch strings.ToLower(v) {
	case "enabled", "true", "yes", "y", "on", "1":
		*b = true
	case "disabled", "false", "no", "n", "off", "0":
		*b = false
	default:
		return errors.New("choose enabled or disabled")
	}
	return nil
}
