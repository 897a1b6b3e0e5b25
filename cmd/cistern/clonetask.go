package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cisternfs/cistern/internal/progress"
	"github.com/cisternfs/cistern/internal/vfs"
)

// The stages of a clone are those of MySQL's Clone plugin, so that who watches
// one can watch the other.
const (
	stageDrop     = "DROP DATA"
	stageFiles    = "FILE COPY"
	stagePages    = "PAGE COPY"
	stageRedo     = "REDO COPY"
	stageSync     = "FILE SYNC"
	stageRestart  = "RESTART"
	stageRecovery = "RECOVERY"
)

// States of a stage and of a clone.
const (
	stateWaiting     = "not started"
	stateRunning     = "in progress"
	stateCompleted   = "completed"
	stateFailed      = "failed"
	stateInterrupted = "interrupted"
	stateNone        = "not applicable"
)

// cloneStage is one stage as it is shown.
type cloneStage struct {
	Stage    string     `json:"stage"`
	State    string     `json:"state"`
	Why      string     `json:"why,omitempty"` // it does not apply
	Started  *time.Time `json:"started,omitempty"`
	Ended    *time.Time `json:"ended,omitempty"`
	Seconds  float64    `json:"seconds"`
	Bytes    int64      `json:"bytes"`                  // that are to be copied
	Done     int64      `json:"done_bytes"`             // of them
	Things   int64      `json:"things"`                 // objects or files
	Finished int64      `json:"done_things"`            // of them
	Percent  float64    `json:"percent"`                // of the bytes, or of the things where there are none
	Left     *float64   `json:"left_seconds,omitempty"` // estimated; absent: not known
	Error    string     `json:"error,omitempty"`        // why it failed
}

// cloneStatus is a clone that runs, or has ended, as the user's state directory
// has it.
type cloneStatus struct {
	ID      string       `json:"id"`
	Source  string       `json:"source"`
	Target  string       `json:"target"`
	Commit  uint64       `json:"commit,omitempty"`
	PID     int          `json:"pid"`
	State   string       `json:"state"`
	Started time.Time    `json:"started"`
	Ended   *time.Time   `json:"ended,omitempty"`
	Error   string       `json:"error,omitempty"`
	Stages  []cloneStage `json:"stages"`
}

func (s *cloneStatus) stage(name string) *cloneStage {
	for i := range s.Stages {
		if s.Stages[i].Stage == name {
			return &s.Stages[i]
		}
	}
	panic("clone: no stage " + name)
}

const (
	clonesKept    = 50                     // in the state directory, those that run besides
	cloneSaved    = 500 * time.Millisecond // how often the file is written while bytes move
	cloneTold     = 5 * time.Second        // how often --progress tells of one stage
	cloneFile     = "status.json"
	cloneStateDir = "clones"
)

// cloneTask keeps the status of one clone: in a file, and on standard error, as a bar
// on a terminal or in lines for --progress. Safe for concurrent use.
type cloneTask struct {
	a    *app
	dir  string
	lock io.Closer
	tell bool

	mu    sync.Mutex // guards the fields below
	s     cloneStatus
	saved time.Time
	told  time.Time
	bar   *progress.Bar // of the stage that runs; nil for none
}

// startClone begins the record of a clone. why names the stages that don't apply.
func (a *app) startClone(source, target string, tell bool, why map[string]string) (*cloneTask, error) {
	base, err := a.stateBase()
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	id := fmt.Sprintf("%s-%d", now.Format("20060102T150405.000"), os.Getpid())
	t := &cloneTask{a: a, dir: filepath.Join(base, cloneStateDir, id), tell: tell}
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return nil, fmt.Errorf("record of the clone: %w", localError(t.dir, err))
	}
	if t.lock, err = vfs.OS().Lock(filepath.Join(t.dir, "lock")); err != nil {
		return nil, fmt.Errorf("record of the clone: %w", err)
	}
	t.s = cloneStatus{ID: id, Source: source, Target: target, PID: os.Getpid(), State: stateRunning, Started: now}
	for _, name := range []string{stageDrop, stageFiles, stagePages, stageRedo, stageSync, stageRestart, stageRecovery} {
		st := cloneStage{Stage: name, State: stateWaiting}
		if w, none := why[name]; none {
			st.State, st.Why = stateNone, w
		}
		t.s.Stages = append(t.s.Stages, st)
	}
	t.save()
	if err := a.forgetClones(); err != nil {
		a.note("the record of an old clone stays: %v", err) // and is no reason not to make this one
	}
	return t, nil
}

// save writes the file; who reads it sees a whole one. A state directory that is
// full must not end the clone. Caller holds t.mu, or is alone.
func (t *cloneTask) save() {
	t.saved = time.Now()
	for i := range t.s.Stages {
		t.s.Stages[i].count(t.saved)
	}
	body, err := json.MarshalIndent(t.s, "", "  ")
	if err != nil {
		return // there is nothing in it that could fail
	}
	path := filepath.Join(t.dir, cloneFile)
	if err := os.WriteFile(path+".new", append(body, '\n'), 0o600); err == nil {
		_ = os.Rename(path+".new", path)
	}
}

// count works out what follows from the rest of a stage.
func (s *cloneStage) count(now time.Time) {
	if s.Started == nil {
		return
	}
	end := now
	if s.Ended != nil {
		end = *s.Ended
	}
	s.Seconds = end.Sub(*s.Started).Seconds()
	done, all := s.Done, s.Bytes
	if all == 0 {
		done, all = s.Finished, s.Things
	}
	s.Left = nil
	switch {
	case s.State == stateCompleted:
		s.Percent = 100
	case all > 0:
		s.Percent = 100 * float64(done) / float64(all)
		if done > 0 && s.State == stateRunning {
			left := s.Seconds * float64(all-done) / float64(done)
			s.Left = &left
		}
	}
}

// run runs one stage.
func (t *cloneTask) run(name string, f func() error) error {
	t.change(name, func(s *cloneStage) {
		now := time.Now().UTC()
		s.State, s.Started = stateRunning, &now
	})
	end := t.show(name)
	err := f()
	end(err == nil)
	t.change(name, func(s *cloneStage) {
		now := time.Now().UTC()
		s.Ended, s.State = &now, stateCompleted
		if err != nil {
			s.State, s.Error = stateFailed, sentence(err)
		}
	})
	return err
}

// show begins the bar of a stage that takes long, and returns what ends it.
func (t *cloneTask) show(name string) (end func(finished bool)) {
	var bar *progress.Bar
	switch {
	case t.tell:
	case name == stageFiles:
		bar = progress.Start(t.a.stderr, t.a.terminal, "copying", 0)
	case name == stageDrop:
		bar = progress.StartCount(t.a.stderr, t.a.terminal, "deleting")
	}
	if bar == nil {
		return func(bool) {}
	}
	set := func(b *progress.Bar) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.bar = b
	}
	set(bar)
	return func(finished bool) {
		set(nil)
		bar.Done(finished)
	}
}

// change changes a stage and saves.
func (t *cloneTask) change(name string, f func(s *cloneStage)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.s.stage(name)
	f(s)
	t.save()
	t.say(s, true)
}

// moved says how far a stage has come.
func (t *cloneTask) moved(name string, f func(s *cloneStage)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.s.stage(name)
	f(s)
	switch {
	case t.bar == nil:
	case s.Bytes > 0:
		t.bar.Set(s.Done, s.Bytes)
	case name == stageDrop:
		t.bar.Set(s.Finished, s.Things)
	}
	if time.Since(t.saved) >= cloneSaved {
		t.save()
		t.say(s, false)
	}
}

// say tells of a stage on standard error. Caller holds t.mu.
func (t *cloneTask) say(s *cloneStage, now bool) {
	if !t.tell || !now && time.Since(t.told) < cloneTold {
		return
	}
	t.told = time.Now()
	t.a.note("%s: %s%s", s.Stage, s.State, s.far())
}

// far is how far a stage has come, for people.
func (s *cloneStage) far() string {
	if s.Started == nil || s.Things == 0 && s.Bytes == 0 {
		return ""
	}
	text := fmt.Sprintf(", %.0f %%, %s of %s, %d of %d", s.Percent, size(s.Done), size(s.Bytes), s.Finished, s.Things)
	if s.Left != nil {
		text += fmt.Sprintf(", about %s left", time.Duration(*s.Left*float64(time.Second)).Round(time.Second))
	}
	return text
}

// end closes the record and returns the clone's error.
func (t *cloneTask) end(ctx context.Context, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now().UTC()
	t.s.Ended, t.s.State = &now, stateCompleted
	switch {
	case err != nil && ctx.Err() != nil:
		t.s.State, t.s.Error = stateInterrupted, "interrupted: the same command goes on with it"
	case err != nil:
		t.s.State, t.s.Error = stateFailed, sentence(err)
	}
	t.save()
	return errors.Join(err, t.lock.Close())
}

func (t *cloneTask) commit(n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.s.Commit = n
}

// status is a copy for an answer.
func (t *cloneTask) status() cloneStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.s
	s.Stages = slices.Clone(s.Stages)
	return s
}

// clones reads the records, the latest first. A clone whose process is gone was
// interrupted.
func (a *app) clones() ([]cloneStatus, error) {
	base, err := a.stateBase()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(base, cloneStateDir)
	names, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return nil, localError(dir, err)
	}
	list := []cloneStatus{}
	for _, e := range slices.Backward(names) {
		var s cloneStatus
		body, err := os.ReadFile(filepath.Join(dir, e.Name(), cloneFile))
		if err != nil || json.Unmarshal(body, &s) != nil {
			continue // it just begins, or was left half way
		}
		if s.State == stateRunning && probeLock(filepath.Join(dir, e.Name())) == nil {
			s.State, s.Error = stateInterrupted, fmt.Sprintf("process %d ended: the same command goes on with it", s.PID)
			for i := range s.Stages {
				if s.Stages[i].State == stateRunning {
					s.Stages[i].State, s.Stages[i].Left = stateInterrupted, nil
				}
			}
		}
		s.ID = e.Name() // what is removed by it later must be this directory
		list = append(list, s)
	}
	return list, nil
}

// forgetClones removes the oldest records.
func (a *app) forgetClones() error {
	list, err := a.clones()
	if err != nil {
		return err
	}
	base, err := a.stateBase()
	if err != nil {
		return err
	}
	for i := range list {
		if i >= clonesKept && list[i].State != stateRunning {
			if err := os.RemoveAll(filepath.Join(base, cloneStateDir, list[i].ID)); err != nil {
				return localError(list[i].ID, err)
			}
		}
	}
	return nil
}

// writeClone writes a status for people.
func (a *app) writeClone(s *cloneStatus) error {
	return a.writeOut(func(w io.Writer) {
		fmt.Fprintf(w, "clone\t%s, commit %d\n", s.Source, s.Commit)
		fmt.Fprintf(w, "to\t%s\n", s.Target)
		state := s.State
		if s.Error != "" {
			state += ": " + s.Error
		}
		fmt.Fprintf(w, "state\t%s\n", state)
		fmt.Fprintf(w, "started\t%s, process %d\n", snapshotTime(s.Started), s.PID)
		if s.Ended != nil {
			fmt.Fprintf(w, "ended\t%s\n", snapshotTime(*s.Ended))
		}
		fmt.Fprintf(w, "\nSTAGE\tSTATE\tSTARTED\tTOOK\tDONE\n")
		for i := range s.Stages {
			st := &s.Stages[i]
			if st.State == stateNone {
				fmt.Fprintf(w, "%s\t%s: %s\n", st.Stage, st.State, st.Why)
				continue
			}
			started, took := "", ""
			if st.Started != nil {
				started, took = st.Started.Local().Format("15:04:05"), time.Duration(st.Seconds*float64(time.Second)).Round(10*time.Millisecond).String()
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s%s\n", st.Stage, st.State, started, took, strings.TrimPrefix(st.far(), ", "), errorAfter(st.Error))
		}
	})
}

func errorAfter(text string) string {
	if text == "" {
		return ""
	}
	return " " + text
}
