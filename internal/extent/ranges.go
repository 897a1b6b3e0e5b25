package extent

// Range is the half-open range [Off, End) of bytes or of numbered things.
type Range struct{ Off, End int64 }

// Len returns End-Off.
func (r Range) Len() int64 { return r.End - r.Off }
