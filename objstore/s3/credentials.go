package s3

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"

	"github.com/cisternfs/cistern/objstore"
)

const (
	roleSession  = "cistern" // how assumed roles are named in CloudTrail
	expiryWindow = 5 * time.Minute
)

// chain returns where the keys come from.
func chain(cfg aws.Config, o *Options) *aws.CredentialsCache {
	from := cfg.Credentials
	if o.EC2Role {
		from = ec2rolecreds.New(func(r *ec2rolecreds.Options) {
			r.Client = imds.NewFromConfig(cfg, func(i *imds.Options) { i.EnableFallback = aws.FalseTernary })
		})
	}
	if o.RoleARN != "" || o.RoleName != "" {
		cfg.Credentials = from
		from = &role{o: o, sts: sts.NewFromConfig(cfg, func(c *sts.Options) {
			if o.STSRegion != "" {
				c.Region = o.STSRegion
			}
			if o.STSEndpoint != "" {
				c.BaseEndpoint = aws.String(o.STSEndpoint)
			}
		})}
	}
	return aws.NewCredentialsCache(&explained{from: from}, func(c *aws.CredentialsCacheOptions) { c.ExpiryWindow = expiryWindow })
}

// role assumes a role. The ARN of one that is named is found on the way.
type role struct {
	o   *Options
	sts *sts.Client
}

func (r *role) Retrieve(ctx context.Context) (aws.Credentials, error) {
	name := r.o.RoleARN
	if name == "" {
		me, err := r.sts.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
		if err != nil {
			return aws.Credentials{}, fmt.Errorf("find the account of role %s: %w", r.o.RoleName, err)
		}
		own, err := arn.Parse(aws.ToString(me.Arn))
		if err != nil {
			return aws.Credentials{}, fmt.Errorf("find the account of role %s: %w", r.o.RoleName, err)
		}
		name = fmt.Sprintf("arn:%s:iam::%s:role/%s", own.Partition, own.AccountID, r.o.RoleName)
	}
	c, err := stscreds.NewAssumeRoleProvider(r.sts, name, func(a *stscreds.AssumeRoleOptions) {
		a.RoleSessionName = roleSession
		if r.o.ExternalID != "" {
			a.ExternalID = aws.String(r.o.ExternalID)
		}
	}).Retrieve(ctx)
	if err != nil {
		return aws.Credentials{}, fmt.Errorf("assume role %s: %w", name, err)
	}
	return c, nil
}

// explained gives the errors of a provider of keys a class.
type explained struct {
	from aws.CredentialsProvider
	once atomic.Bool // keys were got before
}

// credentialError says that there are no keys to sign a request with.
type credentialError struct {
	class error // objstore.ErrPermission or objstore.ErrUnavailable
	err   error
}

func (e *credentialError) Error() string { return e.err.Error() }
func (e *credentialError) Unwrap() error { return e.err }

func (p *explained) Retrieve(ctx context.Context) (aws.Credentials, error) {
	if p.from == nil {
		return aws.Credentials{}, &credentialError{objstore.ErrPermission, errors.New("no credentials were found")}
	}
	c, err := p.from.Retrieve(ctx)
	if err == nil {
		p.once.Store(true)
		return c, nil
	}
	class := objstore.ErrUnavailable
	var api smithy.APIError
	var op *smithy.OperationError
	switch {
	case errors.As(err, &api):
		if f := judge(statusOf(err), api.ErrorCode()); f.class != nil {
			class = f.class
		} else {
			class = objstore.ErrPermission
		}
	case p.once.Load():
		// They were there before: what gives them can't be reached at the moment.
	case errors.As(err, &op) && !strings.Contains(op.ServiceID, "imds"):
		// A service that was named can't be reached.
	default:
		// The last place to look, an EC2 instance's role, is only there on one.
		class = objstore.ErrPermission
		err = fmt.Errorf("no credentials were found: set aws_access_key_id and aws_secret_access_key in the section [S3] of the configuration file, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role: %w", err)
	}
	return aws.Credentials{}, &credentialError{class, err}
}
