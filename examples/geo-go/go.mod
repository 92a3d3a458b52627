module pando/examples/geo-go

go 1.19
