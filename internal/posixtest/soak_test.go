package posixtest

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/testenv"
)

// TestExercise_Soak runs both exercisers with new seeds for SOAK_SECONDS, in
// the directory that CISTERN_SOAK_DIR names, or else on the local disk.
func TestExercise_Soak(t *testing.T) {
	seconds, err := strconv.Atoi(os.Getenv("SOAK_SECONDS"))
	if err != nil || seconds == 0 {
		seconds = 1
	}
	dir := os.Getenv("CISTERN_SOAK_DIR")
	if dir == "" {
		dir = testenv.TempDir(t)
	}
	seed := uint64(time.Now().UnixNano() % 1e12)
	for start := time.Now(); time.Since(start) < time.Duration(seconds)*time.Second && !t.Failed(); seed++ {
		t.Run(fmt.Sprintf("bytes %d", seed), func(t *testing.T) { Exercise(t, dir, seed, 5000) })
		t.Run(fmt.Sprintf("names %d", seed), func(t *testing.T) { ExerciseTree(t, dir, seed, 2000) })
	}
}
