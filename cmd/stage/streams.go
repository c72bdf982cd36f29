package main

import (
	"log/slog"
	"os"

	"stage/cmd/internal/render"
)

// streams are the three files of the process, and how the two outputs may be written to.
type streams struct {
	in  *os.File
	out *render.Screen // results
	err *render.Screen // speech
	log *slog.Logger   // silent unless STAGE_LOG is set
}

func newStreams() *streams {
	noColour := os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
	level := slog.LevelError + 1
	if os.Getenv("STAGE_LOG") == "debug" {
		level = slog.LevelDebug
	}
	return &streams{
		in:  os.Stdin,
		out: render.NewScreen(os.Stdout, noColour),
		err: render.NewScreen(os.Stderr, noColour),
		log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	}
}
