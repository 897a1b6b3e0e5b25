package metadata

import "strings"

// SchedulePrefix is where the schedules of snapshots lie.
const SchedulePrefix = "schedules/"

// Schedule says when snapshots are made, and which of them stay. Anyone may write
// one, without the lease; the mount that owns the volume keeps it.
type Schedule struct {
	Name    string
	Every   int64      // nanoseconds; snapshots are due at its multiples since 1970, in UTC
	Keep    []KeepRule // none: all stay
	Tags    map[string]string
	Created int64  // nanoseconds since 1970
	Holder  string // who set it, for people
}

// KeepRule keeps the last snapshot of each of so many periods.
type KeepRule struct {
	Count  int
	Period string // last, hourly, daily, weekly, monthly or yearly
}

type scheduleDoc struct {
	docHead
	Name    text            `json:"name"`
	Every   snum            `json:"every_ns"`
	Keep    []keepDoc       `json:"keep,omitempty"`
	Tags    map[string]text `json:"tags,omitempty"`
	Created snum            `json:"created"`
	Holder  text            `json:"holder,omitempty"`
}

type keepDoc struct {
	Count  int    `json:"n"`
	Period string `json:"period"`
}

// ScheduleKey is where a schedule lies: its name must be a snapshot's.
func ScheduleKey(name, random string) string {
	return SchedulePrefix + plainName(name, false) + "~" + random + ".json"
}

// EncodeSchedule returns the schedule's document.
func EncodeSchedule(s *Schedule) []byte {
	return sealDoc(scheduleDoc{
		docHead: docHead{Kind: "schedule", V: formatVersion}, Name: text(s.Name), Every: snum(s.Every),
		Keep: mapped(s.Keep, func(k KeepRule) keepDoc { return keepDoc(k) }),
		Tags: retyped[text](s.Tags), Created: snum(s.Created), Holder: text(s.Holder),
	})
}

// DecodeSchedule verifies and reads a schedule's document: ErrDamaged, ErrNewerFormat.
func DecodeSchedule(body []byte) (*Schedule, error) {
	var d scheduleDoc
	if err := openDoc(body, "schedule", &d); err != nil {
		return nil, err
	}
	if d.Every <= 0 || strings.ContainsAny(string(d.Name), "/~") {
		return nil, damaged("schedule", "it is called %.60q and runs every %d ns", string(d.Name), int64(d.Every))
	}
	return &Schedule{
		Name: string(d.Name), Every: int64(d.Every), Keep: mapped(d.Keep, func(k keepDoc) KeepRule { return KeepRule(k) }),
		Tags: retyped[string](d.Tags), Created: int64(d.Created), Holder: string(d.Holder),
	}, nil
}
