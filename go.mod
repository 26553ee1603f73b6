module github.com/dispatchthrottle/throttle

go 1.26.0
