SwaggerUIBundle({ url: "openapi.json", dom_id: "#explorer", validatorUrl: null, queryConfigEnabled: false });
