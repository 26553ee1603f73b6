package console

import (
	"embed"
	"io/fs"
	"net/http"
)

// The page is plain HTML, CSS and JavaScript. Its plots are drawn by uPlot 1.6.32, whose built file
// and licence are beside it.
//
//go:embed page
var files embed.FS

// views are the paths under which the page is served.
var views = []string{"/", "/topic", "/history", "/quotas", "/health"}

// pages serves the page and what it is made of.
func pages() http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the name is a constant
	}
	mux := http.NewServeMux()
	for _, view := range views {
		if view == "/" {
			view = "/{$}" // and nothing below it
		}
		mux.HandleFunc(view, func(w http.ResponseWriter, r *http.Request) {
			http.ServeFileFS(w, r, page, "console.html")
		})
	}
	mux.Handle("/page/", http.StripPrefix("/page/", http.FileServerFS(page)))
	return mux
}
