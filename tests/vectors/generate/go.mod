module generate

go 1.19
