package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cisternfs/cistern/internal/config"
)

func (a *app) configCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check, show and convert configuration files", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	var asJSON bool
	check := &cobra.Command{
		Use: "check [file]", Short: "Say what is wrong in a configuration file", Args: cobra.MaximumNArgs(1),
		Long: `Reads every section of a configuration file, ColumnStore's storagemanager.cnf
among them, as commands will, and says all that is wrong, a line each with section,
key, value and reason; exit status 2 then. It tells which keys have no effect, and why.`,
	}
	show := &cobra.Command{
		Use: "show [file]", Short: "Show what a configuration file comes to", Args: cobra.MaximumNArgs(1),
		Long: `Shows the settings that commands take from a configuration file and the
environment, with their defaults, and where volumes are. Secrets are not shown.`,
	}
	show.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	convert := &cobra.Command{
		Use: "convert [file]", Short: "Write storagemanager.cnf as a file with Cistern's own keys", Args: cobra.MaximumNArgs(1),
		Long: `Writes to standard output what Cistern needs of a storagemanager.cnf: the section
[mount] in the place of [Cache], [Cistern] in the place of what names the bucket,
and the others without the keys that have no effect. ${NAME} stays as it is.`,
	}
	c.AddCommand(
		a.command(check, func(_ context.Context, _ *cobra.Command, args []string) error { return a.configCheck(args) }),
		a.command(show, func(_ context.Context, _ *cobra.Command, args []string) error { return a.configShow(args, asJSON) }),
		a.command(convert, func(_ context.Context, _ *cobra.Command, args []string) error { return a.configConvert(args) }),
	)
	return c
}

// useConfig takes the file that was given in the place of --config's.
func (a *app) useConfig(args []string) (*configFile, error) {
	if len(args) == 1 {
		a.configFlag, a.config = args[0], nil
	}
	f, err := a.readConfig()
	if err == nil && f.path == "" {
		err = usage(fmt.Errorf("name a configuration file, or --config"))
	}
	return f, err
}

// noEffect says why a key is read and does nothing.
func noEffect() map[string]string {
	const own = "the state directory has its place: see --state"
	return map[string]string{
		sectionStorage + "/metadata_path": "`cistern import columnstore` alone reads it",
		sectionStorage + "/journal_path":  "`cistern import columnstore` alone reads it; " + own,
		sectionCache + "/path":            "`cistern import columnstore` alone reads it; " + own,
		sectionLocal + "/fake_latency":    "no latency is added",
		sectionLocal + "/max_latency":     "no latency is added",
		sectionS3 + "/connect_timeout":    "deadlines follow from the size of a request",
		sectionS3 + "/timeout":            "deadlines follow from the size of a request",
		sectionS3 + "/libs3_debug":        "see the metrics and the log of the mount",
	}
}

func (a *app) configCheck(args []string) error {
	f, err := a.useConfig(args)
	if err != nil {
		return err
	}
	if err := a.checkFile(f); err != nil {
		return a.tellEach(err)
	}
	raw, err := config.Raw(f.path, f.text)
	if err != nil {
		return usage(err)
	}
	why := noEffect()
	for _, s := range raw {
		for _, k := range s.Keys {
			if reason := why[s.Name+"/"+k.Name]; reason != "" {
				if err := a.say("[%s] %s has no effect: %s", s.Name, k.Name, reason); err != nil {
					return err
				}
			}
		}
	}
	return a.say("%s is right", f.path)
}

// tellEach tells everything that is wrong in a line of its own.
func (a *app) tellEach(err error) error {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		a.note("%s", plainWords(line))
	}
	return said(exitStatus(err))
}

// checkFile reads every section as the commands do that need it, and joins all that
// is wrong.
func (a *app) checkFile(f *configFile) error {
	o := newMountOptions()
	flags := pflag.NewFlagSet("mount", pflag.ContinueOnError)
	o.mountFlags(flags)
	none := func(string) (string, bool) { return "", false }
	lookup := func(name string) (string, bool) { // what ${NAME} stands for, and no settings
		if strings.HasPrefix(name, "CISTERN_") {
			return none(name)
		}
		return a.lookup(name)
	}
	var wrong problems
	wrong.add(config.Apply(flags, lookup, f.path, f.text, "mount", notSettings()...))
	relay := a.binlogRelayCommand()
	wrong.add(config.Apply(relay.Flags(), lookup, f.path, f.text, "relay", notSettings()...))
	_, err := a.readStorageManager()
	wrong.add(err)
	wrong.add(a.checkS3Whole(f))
	wrong.add(a.checkGCSWhole(f))
	_, err = a.sectionSettings(sectionEncryption, []string{"key_file"})
	wrong.add(err)
	return wrong.err()
}

// checkS3Whole finds what in the section [S3] does not go together; values that are
// wrong by themselves are as if they were left out.
func (a *app) checkS3Whole(f *configFile) error {
	s, _ := a.readS3Section() // readStorageManager tells of the error
	s.o.Bucket = cmp.Or(s.bucket, "any")
	if err := s.complete(); err != nil {
		return fmt.Errorf("%s: [%s]: %w", f.path, sectionS3, err)
	}
	if err := s.o.Validate(); err != nil {
		return fmt.Errorf("%s: [%s]: %w", f.path, sectionS3, err)
	}
	return nil
}

// checkGCSWhole is checkS3Whole for the section [GCS], each value by itself included.
func (a *app) checkGCSWhole(f *configFile) error {
	set, err := a.sectionSettings(sectionGCS, gcsKeys())
	var wrong problems
	wrong.add(err)
	o, err := a.gcsValues(set)
	wrong.add(err)
	o.Bucket = cmp.Or(set["bucket"], "any")
	if err := o.Validate(); err != nil {
		wrong.add(fmt.Errorf("%s: [%s]: %w", f.path, sectionGCS, err))
	}
	return wrong.err()
}

// shownSetting is one line of `config show`.
type shownSetting struct {
	Section string `json:"section"`
	Key     string `json:"key"`
	Value   string `json:"value"`
	Default bool   `json:"default,omitempty"`
}

func (a *app) configShow(args []string, asJSON bool) error {
	f, err := a.useConfig(args)
	if err != nil {
		return err
	}
	if err := a.checkFile(f); err != nil {
		return a.tellEach(err)
	}
	list, err := a.effective(f)
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(list)
	}
	return a.writeOut(func(w io.Writer) {
		for _, s := range list {
			note := ""
			if s.Default {
				note = "(default)"
			}
			fmt.Fprintf(w, "[%s]\t%s\t%s\t%s\n", s.Section, s.Key, text(s.Value).shown(), note)
		}
	})
}

// effective lists the settings as they count.
func (a *app) effective(f *configFile) ([]shownSetting, error) {
	sm, err := a.readStorageManager()
	if err != nil {
		return nil, err
	}
	o := newMountOptions()
	flags := pflag.NewFlagSet("mount", pflag.ContinueOnError)
	o.mountFlags(flags)
	if err := a.applyMountFile(o, flags, f); err != nil {
		return nil, usage(err)
	}
	var list []shownSetting
	add := func(section, key, value string, isDefault bool) {
		list = append(list, shownSetting{section, key, value, isDefault})
	}
	bucket, err := sm.bucketURL()
	if err != nil {
		return nil, err
	}
	volumes, err := sm.volumeURL("data1")
	if err != nil {
		return nil, err
	}
	add(sectionCistern, "volumes", strings.TrimSuffix(volumes.String(), "/data1"), sm.volumes == "")
	if len(sm.dbroots) > 0 {
		add(sectionCistern, "dbroots", strings.Join(sm.dbroots, ", "), false)
	}
	add(sectionStorage, "service", sm.service, !sm.given[sectionStorage+"/service"])
	add(sectionStorage, "bucket", bucket, false)
	add(sectionStorage, "object_size", sm.object.String(), !sm.given[sectionStorage+"/object_size"])
	add(sectionStorage, "common_prefix_depth", fmt.Sprint(sm.depth), !sm.given[sectionStorage+"/common_prefix_depth"])
	add(sectionStorage, keyUploads, fmt.Sprint(sm.requests.uploads), !sm.given[sectionStorage+"/"+keyUploads])
	add(sectionStorage, keyDownloads, fmt.Sprint(sm.requests.downloads), !sm.given[sectionStorage+"/"+keyDownloads])
	if t := sm.requests.timeout; t > 0 {
		add(sectionStorage, keyTimeout, fmt.Sprint(int(t/time.Second)), false)
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if v := f.Value.String(); !f.Hidden && v != "" && v != "[]" {
			add("mount", strings.ReplaceAll(f.Name, "-", "_"), v, !f.Changed && !(f.Name == "cache-size" && sm.given[sectionCache+"/cache_size"]))
		}
	})
	raw, err := config.Raw(f.path, f.text)
	if err != nil {
		return nil, usage(err)
	}
	if slices.ContainsFunc(raw, func(s config.RawSection) bool { return s.Name == "relay" }) {
		relay := a.binlogRelayCommand().Flags()
		if err := config.Apply(relay, a.lookup, f.path, f.text, "relay", notSettings()...); err != nil {
			return nil, usage(err)
		}
		relay.VisitAll(func(f *pflag.Flag) {
			if v := f.Value.String(); !f.Hidden && v != "" && v != "[]" && !slices.Contains(notSettings(), f.Name) {
				add("relay", strings.ReplaceAll(f.Name, "-", "_"), v, !f.Changed)
			}
		})
	}
	for _, s := range raw {
		if s.Name != sectionS3 && s.Name != sectionGCS && s.Name != sectionEncryption {
			continue
		}
		for _, k := range s.Keys {
			value := k.Value
			if strings.Contains(k.Name, "secret") || strings.Contains(k.Name, "token") {
				value = "(not shown)"
			}
			add(s.Name, k.Name, value, false)
		}
	}
	return list, nil
}

func (a *app) configConvert(args []string) error {
	f, err := a.useConfig(args)
	if err != nil {
		return err
	}
	if err := a.checkFile(f); err != nil {
		return a.tellEach(err)
	}
	sm, err := a.readStorageManager()
	if err != nil {
		return err
	}
	raw, err := config.Raw(f.path, f.text)
	if err != nil {
		return usage(err)
	}
	volumes, err := sm.volumeURL("data1")
	if err != nil {
		return err
	}
	var mount, rest strings.Builder
	why := noEffect()
	if slices.ContainsFunc(raw, func(s config.RawSection) bool {
		return s.Name == "mount" && slices.ContainsFunc(s.Keys, func(k config.RawKey) bool { return k.Name == "cache_size" })
	}) {
		why[sectionCache+"/cache_size"] = "[mount] has one, which counts"
	}
	for _, s := range raw {
		if s.Name == sectionLocal || s.Name == sectionCistern || s.Name == sectionS3 && sm.service != "s3" {
			continue
		}
		to := &rest
		if s.Name == sectionCache || s.Name == "mount" {
			to = &mount
		}
		var b strings.Builder
		for _, k := range s.Keys {
			if why[s.Name+"/"+k.Name] == "" {
				fmt.Fprintf(&b, "%s = %s\n", k.Name, k.Value)
			}
		}
		if to == &mount {
			mount.WriteString(b.String())
		} else if b.Len() > 0 {
			fmt.Fprintf(&rest, "\n[%s]\n%s", s.Name, b.String())
		}
	}
	out := fmt.Sprintf("[%s]\nvolumes = %s\n", sectionCistern, strings.TrimSuffix(volumes.String(), "/data1"))
	if len(sm.dbroots) > 0 {
		out += "dbroots = " + strings.Join(sm.dbroots, ", ") + "\n"
	}
	if mount.Len() > 0 {
		out += "\n[mount]\n" + mount.String()
	}
	if _, err := io.WriteString(a.stdout, out+rest.String()); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}
