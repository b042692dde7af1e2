use tonic_build::manual::{Builder, Method, Service};

/// The service as `service Hall { rpc Book(Seat) returns (Booked); }`, for machines without protoc.
fn main() {
    let book = Method::builder()
        .name("book")
        .route_name("Book")
        .input_type("crate::Seat")
        .output_type("crate::Booked")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let hall = Service::builder()
        .package("recipe")
        .name("Hall")
        .method(book)
        .build();
    Builder::new().compile(&[hall]);
}
