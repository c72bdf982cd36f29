package mockmodel

import (
	"fmt"
	"regexp"
)

// thread is a client's position in a script.
type thread struct {
	turn   int // next turn to play
	times  int // how often it was played already
	played int // responses in all
}

// next picks the turn that r asks for, with its variables replaced. The position moves on with
// played, once the response went out: a client that repeats a request gets the same turn.
func (s *Server) next(r *Request) (turn Turn, played func(), err error) {
	sc, ok := s.scripts[r.Script]
	if !ok {
		return Turn{}, nil, fmt.Errorf("no script %q", r.Script)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.Script + "\x00" + r.Thread
	th := s.threads[key]
	if th == nil {
		th = &thread{}
		s.threads[key] = th
	}
	at := sc.jump(th.turn, r.lastOutput())
	r.Turn = at
	turn = Turn{Final: "mock: the script is over"}
	if at < len(sc.Turns) {
		turn = sc.Turns[at]
	}
	if turn.Usage == nil {
		turn.Usage = &Usage{Input: 1000 + 250*int64(th.played), Cached: 800, Output: 40}
	}
	turn, err = sc.expand(turn, s.vars, r.lastOutput())
	return turn, func() { s.moveOn(th, at, turn.Repeat) }, err
}

func (s *Server) moveOn(th *thread, at, repeat int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if th.turn != at {
		th.turn, th.times = at, 0
	}
	th.played++
	th.times++
	if th.times >= repeat {
		th.turn, th.times = at+1, 0
	}
}

// jump follows the conditions of turns from turn at on; a circle of jumps ends where it began.
func (s Script) jump(at int, output string) int {
	for range s.Turns {
		next := at
		if at < len(s.Turns) {
			next = s.Turns[at].jump(s, at, output)
		}
		if next == at {
			return at
		}
		at = next
	}
	return at
}

func (t Turn) jump(s Script, at int, output string) int {
	for _, j := range t.When {
		if regexp.MustCompile(j.Match).MatchString(output) == j.Not {
			continue
		}
		for i := range s.Turns {
			if s.Turns[i].Label == j.Goto {
				return i
			}
		}
	}
	return at
}
