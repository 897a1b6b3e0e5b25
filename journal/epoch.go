package journal

// Epoch returns the epoch of the newest file that may hold records: that of
// the writer who used the journal last; 0 when there is no such file.
func (j *Journal) Epoch() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.files) == 0 {
		return 0
	}
	return j.current().head.epoch
}
