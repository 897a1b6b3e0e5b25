package posixtest

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestRun_LocalDisk(t *testing.T) { Run(t, Dir(t)) }

func TestExercise_LocalDisk(t *testing.T) {
	for seed := range uint64(3) {
		Exercise(t, t.TempDir(), seed, 3000)
	}
}

func TestExerciseTree_LocalDisk(t *testing.T) {
	for seed := range uint64(3) {
		ExerciseTree(t, t.TempDir(), seed, 3000)
	}
}
