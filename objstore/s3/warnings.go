package s3

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/cisternfs/cistern/objstore"
)

// Warnings returns, a sentence each, what of the bucket's settings hurts a
// volume whose keys begin with prefix. What may not be asked, or what the store
// does not know, is no warning; an error means that the store could not be
// asked now.
func (s *Store) Warnings(ctx context.Context, prefix string) ([]string, error) {
	var list []string
	for _, ask := range []struct {
		action string
		of     func(ctx context.Context, prefix string) ([]string, error)
	}{
		{"s3:GetBucketVersioning", s.versioningWarnings},
		{"s3:GetBucketObjectLockConfiguration", s.lockWarnings},
		{"s3:GetLifecycleConfiguration", s.lifecycleWarnings},
	} {
		found, err := ask.of(ctx, prefix)
		if err == nil {
			list = append(list, found...)
			continue
		}
		err = s.failed(ctx, operation{"look at the settings of", ask.action}, prefix, err)
		if ctx.Err() != nil || errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrNoBucket) {
			return list, err
		}
		s.log.Debug("a setting of the bucket is not known", "error", err)
	}
	return list, nil
}

func (s *Store) versioningWarnings(ctx context.Context, _ string) ([]string, error) {
	out, err := s.client.GetBucketVersioning(ctx, &awss3.GetBucketVersioningInput{Bucket: &s.o.Bucket})
	if err != nil || out.Status != types.BucketVersioningStatusEnabled {
		return nil, err
	}
	return []string{fmt.Sprintf("bucket %s has versioning on: what the volume deletes or overwrites (its lease every few seconds) goes on to cost until a lifecycle rule expires noncurrent versions", s.o.Bucket)}, nil
}

func (s *Store) lockWarnings(ctx context.Context, _ string) ([]string, error) {
	out, err := s.client.GetObjectLockConfiguration(ctx, &awss3.GetObjectLockConfigurationInput{Bucket: &s.o.Bucket})
	if err != nil || out.ObjectLockConfiguration == nil || out.ObjectLockConfiguration.Rule == nil || out.ObjectLockConfiguration.Rule.DefaultRetention == nil {
		return nil, err
	}
	r := out.ObjectLockConfiguration.Rule.DefaultRetention
	period := fmt.Sprintf("%d days", aws.ToInt32(r.Days))
	if r.Days == nil {
		period = fmt.Sprintf("%d years", aws.ToInt32(r.Years))
	}
	return []string{fmt.Sprintf("bucket %s locks every new object for %s (Object Lock, mode %s): what the volume deletes or overwrites, its lease every few seconds among it, costs until then", s.o.Bucket, period, r.Mode)}, nil
}

func (s *Store) lifecycleWarnings(ctx context.Context, prefix string) ([]string, error) {
	out, err := s.client.GetBucketLifecycleConfiguration(ctx, &awss3.GetBucketLifecycleConfigurationInput{Bucket: &s.o.Bucket})
	if err != nil {
		return nil, err
	}
	var list []string
	for _, r := range out.Rules {
		under := rulePrefix(r)
		if r.Status != types.ExpirationStatusEnabled || !strings.HasPrefix(under, prefix) && !strings.HasPrefix(prefix, under) {
			continue
		}
		name := fmt.Sprintf("lifecycle rule %q of bucket %s", aws.ToString(r.ID), s.o.Bucket)
		if e := r.Expiration; e != nil && (e.Days != nil || e.Date != nil) {
			list = append(list, name+" deletes objects by age, which destroys the volume: objects stay in use for as long as their data does")
		}
		for _, t := range r.Transitions {
			if t.StorageClass == types.TransitionStorageClassGlacier || t.StorageClass == types.TransitionStorageClassDeepArchive {
				list = append(list, fmt.Sprintf("%s moves objects to %s, where the volume can't read them", name, t.StorageClass))
			} else {
				list = append(list, fmt.Sprintf("%s moves objects to %s by age: reading them may cost more or take longer", name, t.StorageClass))
			}
		}
	}
	return list, nil
}

// rulePrefix returns the prefix that a lifecycle rule is for. Tags and sizes
// may narrow it further.
func rulePrefix(r types.LifecycleRule) string {
	switch {
	case r.Filter == nil:
		return aws.ToString(r.Prefix) // where old rules have it
	case r.Filter.And != nil:
		return aws.ToString(r.Filter.And.Prefix)
	}
	return aws.ToString(r.Filter.Prefix)
}
